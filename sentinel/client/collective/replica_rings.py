"""Mirrors: on rank 0, a ring for every rank of another node, written with what that rank sent.

The agent of rank 0's node reads them as it reads any: what a rank says arrives bit by bit as it
stands in the ring of its own, only later.
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
"""Bytes of a mirror: it is read five times a second."""
MIN_CHUNKS_PER_CALL = 16
"""Ranks whose chunks are put away at one step, at least."""
_VALUES_HEADER = struct.Struct(VALUES_HEADER_FORMAT)
_SCHEMA_KIND = b"N"
_STOP_PREFIX = b'T["' + Event.STOP.value.encode()


@dataclass
class ReplicaRing:
    """One rank's ring as rank 0 keeps it. Names are written again before they are overrun."""

    ring: RingWriter
    schemas: dict[bytes, bytes] = field(default_factory=dict)
    stopped: bool = False
    """Whether the rank's own STOP was put in."""
    _bytes_since_schemas: int = 0

    def write(self, payload: bytes) -> None:
        """One payload of that rank."""
        kind = payload[:1]
        if kind == VALUES_KIND and len(payload) >= _VALUES_HEADER.size:
            _, _, *moment = _VALUES_HEADER.unpack_from(payload)
            self.ring.step, self.ring.step_index, self.ring.time = moment
        elif kind == _SCHEMA_KIND and len(self.schemas) < MAX_SCHEMAS // 2:
            self.schemas[payload.partition(b",")[0]] = payload
        self.stopped = self.stopped or payload.startswith(_STOP_PREFIX)
        self._bytes_since_schemas += len(payload)
        if self._bytes_since_schemas > self.ring.capacity // 4:
            self._bytes_since_schemas = 0
            for names in self.schemas.values():
                self.ring.write(names)
        self.ring.write(payload)

    def close(self, outcome: str, facts: Mapping[str, str]) -> None:
        """The rank is heard no more; `outcome` and `facts` hold where it did not say STOP."""
        if not self.stopped:
            moment = StepStamp(self.ring.step, self.ring.step_index, self.ring.time)
            RecordEncoder(self.ring.write).write_event(
                Event.STOP, moment, attributes={"outcome": outcome, **facts}
            )
        # The header is read only where the STOP is lost: what is not known is no failure.
        failed = "finished" if outcome == UNKNOWN_OUTCOME else "exit"
        self.ring.close(outcome if outcome in OUTCOMES else failed)


@dataclass
class ReplicaRings:
    """All mirrors of one run; `identity` is rank 0's own, `drop` counts in its ring."""

    identity: Identity
    count_drop: Callable[[str, int], None]
    by_rank: dict[int, ReplicaRing] = field(default_factory=dict)
    _queue: deque[tuple[int, Chunk]] = field(default_factory=deque)

    def enqueue(self, chunks: Iterable[tuple[int, Chunk]]) -> None:
        """Chunks that came in, by rank, to be put away."""
        self._queue.extend(each for each in chunks if each[1].payloads or each[1].lost_records)

    def write_queued(self, calls: int = 1) -> None:
        """Write a part of what came in: all of it within `turns` calls."""
        if not self._queue:
            return
        for _ in range(min(len(self._queue), max(MIN_CHUNKS_PER_CALL, len(self._queue) // calls))):
            rank, chunk = self._queue.popleft()
            mirror = self.by_rank.get(rank) or self._create(rank, chunk)
            if mirror is None:
                self.count_drop("behind", len(chunk.payloads) + chunk.lost_records)
                continue
            if chunk.lost_records:
                mirror.ring.count_drop("behind", chunk.lost_records)
            for payload in chunk.payloads:
                if payload[:1] != IDENTITY_KIND:
                    mirror.write(payload)

    def close(self, rank: int, outcome: str, facts: Mapping[str, str]) -> None:
        """That rank is heard no more."""
        mirror = self.by_rank.pop(rank, None)
        if mirror is not None:
            mirror.close(outcome, facts)

    def abandon(self) -> None:
        """In a forked child: unmapped any later, this memory may be somebody else's by then."""
        for mirror in self.by_rank.values():
            mirror.ring.abandon()

    def _create(self, rank: int, chunk: Chunk) -> ReplicaRing | None:
        try:
            told = sender_identity(chunk.payloads)
            if told is None:
                return None
            who = _replica_identity(self.identity, rank, told)
            path = paths.ring_path(who.run, who.attempt, rank)
            capacity = fitting_capacity(path.parent, REPLICA_RING_BYTES, ring_count=who.world_size)
            mirror = ReplicaRing(RingWriter(path, who, capacity))
        except (OSError, ValueError, TypeError, KeyError):
            # No room for it, or not the words of a rank: the others are heard.
            return None
        self.by_rank[rank] = mirror
        return mirror


def _replica_identity(ours: Identity, rank: int, sender: Mapping[str, Any]) -> Identity:
    """The sender's identity, in our run and our attempt: nodes may count theirs otherwise."""
    return replace(
        ours,
        rank=rank,
        local_rank=int(sender["local_rank"]),
        local_world_size=int(sender["local_world_size"]),
        host=str(sender["host"])[:256],
    )
