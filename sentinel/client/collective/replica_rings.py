"""Replica rings: on rank 0, one ring per rank of other nodes, with the payloads of that rank.

The agent of rank 0's node reads them like any ring. The payloads are identical to those in the
rank's own ring, but arrive later.
"""

from __future__ import annotations

import struct
from collections import deque
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from sentinel.client.collective.chunk import Chunk
from sentinel.client.collective.sender import IDENTITY_KIND, sender_identity
from sentinel.model.record import UNKNOWN_OUTCOME, Event
from sentinel.transport import paths
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import (
    MAX_SCHEMAS,
    VALUES_HEADER_FORMAT,
    VALUES_KIND,
    RecordEncoder,
    StepStamp,
)
from sentinel.transport.ring import RingWriter, fitting_capacity
from sentinel.transport.ring_layout import OUTCOMES

REPLICA_RING_BYTES = 512 << 10
"""Size of a replica ring; the agent reads it five times a second."""
MIN_CHUNKS_PER_CALL = 16
"""Minimum number of chunks that are written at one step."""
_VALUES_HEADER = struct.Struct(VALUES_HEADER_FORMAT)
_SCHEMA_KIND = b"N"
_STOP_PREFIX = b'T["' + Event.STOP.value.encode()


@dataclass
class ReplicaRing:
    """The replica ring of one rank. Schemas are repeated before they are overrun."""

    ring: RingWriter
    schemas: dict[bytes, bytes] = field(default_factory=dict)
    stopped: bool = False
    """Whether the STOP of the rank was written."""
    _bytes_since_schemas: int = 0

    def write(self, payload: bytes) -> None:
        """Write one payload of that rank."""
        kind = payload[:1]
        if kind == VALUES_KIND and len(payload) >= _VALUES_HEADER.size:
            _, _, *stamp = _VALUES_HEADER.unpack_from(payload)
            self.ring.step, self.ring.step_index, self.ring.time = stamp
        elif kind == _SCHEMA_KIND and len(self.schemas) < MAX_SCHEMAS // 2:
            self.schemas[payload.partition(b",")[0]] = payload
        self.stopped = self.stopped or payload.startswith(_STOP_PREFIX)
        self._bytes_since_schemas += len(payload)
        if self._bytes_since_schemas > self.ring.capacity // 4:
            self._bytes_since_schemas = 0
            for schema in self.schemas.values():
                self.ring.write(schema)
        self.ring.write(payload)

    def close(self, outcome: str, attributes: Mapping[str, str]) -> None:
        """Close the ring; write a STOP with `outcome` and `attributes` if the rank sent none."""
        if not self.stopped:
            stamp = StepStamp(self.ring.step, self.ring.step_index, self.ring.time)
            RecordEncoder(self.ring.write).write_event(
                Event.STOP, stamp, attributes={"outcome": outcome, **attributes}
            )
        # The header is read only if the STOP is lost. An unknown outcome is not a failure.
        fallback = "finished" if outcome == UNKNOWN_OUTCOME else "exit"
        self.ring.close(outcome if outcome in OUTCOMES else fallback)


@dataclass
class ReplicaRings:
    """All replica rings of a run; `identity` is that of rank 0, `count_drop` counts in its ring."""

    identity: Identity
    count_drop: Callable[[str, int], None]
    by_rank: dict[int, ReplicaRing] = field(default_factory=dict)
    _queue: deque[tuple[int, Chunk]] = field(default_factory=deque)

    def enqueue(self, chunks: Iterable[tuple[int, Chunk]]) -> None:
        """Queue received chunks, by rank, to be written."""
        self._queue.extend(each for each in chunks if each[1].payloads or each[1].lost_records)

    def write_queued(self, calls: int = 1) -> None:
        """Write a part of the queue: all of it within `calls` calls."""
        if not self._queue:
            return
        for _ in range(min(len(self._queue), max(MIN_CHUNKS_PER_CALL, len(self._queue) // calls))):
            rank, chunk = self._queue.popleft()
            replica = self.by_rank.get(rank) or self._create(rank, chunk)
            if replica is None:
                self.count_drop("behind", len(chunk.payloads) + chunk.lost_records)
                continue
            if chunk.lost_records:
                replica.ring.count_drop("behind", chunk.lost_records)
            for payload in chunk.payloads:
                if payload[:1] != IDENTITY_KIND:
                    replica.write(payload)

    def close(self, rank: int, outcome: str, attributes: Mapping[str, str]) -> None:
        """Close the replica ring of that rank, if there is one."""
        replica = self.by_rank.pop(rank, None)
        if replica is not None:
            replica.close(outcome, attributes)

    def abandon(self) -> None:
        """Unmap all rings in a forked child, at once: the addresses may be reused later."""
        for replica in self.by_rank.values():
            replica.ring.abandon()

    def _create(self, rank: int, chunk: Chunk) -> ReplicaRing | None:
        try:
            sender = sender_identity(chunk.payloads)
            if sender is None:
                return None
            identity = _replica_identity(self.identity, rank, sender)
            path = paths.ring_path(identity.run, identity.attempt, rank)
            ring_count = identity.world_size
            capacity = fitting_capacity(path.parent, REPLICA_RING_BYTES, ring_count=ring_count)
            replica = ReplicaRing(RingWriter(path, identity, capacity))
        except (OSError, ValueError, TypeError, KeyError):
            # No space, or an invalid payload: the other ranks are not affected.
            return None
        self.by_rank[rank] = replica
        return replica


def _replica_identity(head: Identity, rank: int, sender: Mapping[str, Any]) -> Identity:
    """The sender's identity in the run and attempt of rank 0: other nodes may count differently."""
    return replace(
        head,
        rank=rank,
        local_rank=int(sender["local_rank"]),
        local_world_size=int(sender["local_world_size"]),
        host=str(sender["host"])[:256],
    )
