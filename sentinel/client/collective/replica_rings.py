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
from sentinel.client.collective.sender import IDENTITY, described
from sentinel.model.record import Event
from sentinel.transport import paths
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import HEAD, SCHEMAS_KEPT, VALUES, Moment, Packer
from sentinel.transport.ring import RingWriter, fitting
from sentinel.transport.ring_layout import OUTCOMES, UNKNOWN

CAPACITY = 512 << 10
"""Bytes of a mirror: it is read five times a second."""
FEWEST_AT_ONCE = 16
"""Ranks whose chunks are put away at one step, at least."""
_MOMENT = struct.Struct(HEAD)
_NAMES = b"N"
_STOP = b'T["' + Event.STOP.value.encode()


@dataclass
class Mirror:
    """One rank's ring as rank 0 keeps it. Names are written again before they are overrun."""

    ring: RingWriter
    names: dict[bytes, bytes] = field(default_factory=dict)
    stopped: bool = False
    """Whether the rank's own STOP was put in."""
    _since: int = 0

    def write(self, payload: bytes) -> None:
        """One payload of that rank."""
        kind = payload[:1]
        if kind == VALUES and len(payload) >= _MOMENT.size:
            _, _, *moment = _MOMENT.unpack_from(payload)
            self.ring.step, self.ring.beat, self.ring.time = moment
        elif kind == _NAMES and len(self.names) < SCHEMAS_KEPT // 2:
            self.names[payload.partition(b",")[0]] = payload
        self.stopped = self.stopped or payload.startswith(_STOP)
        self._since += len(payload)
        if self._since > self.ring.capacity // 4:
            self._since = 0
            for names in self.names.values():
                self.ring.write(names)
        self.ring.write(payload)

    def close(self, outcome: str, facts: Mapping[str, str]) -> None:
        """The rank is heard no more; `outcome` and `facts` hold where it did not say STOP."""
        if not self.stopped:
            moment = Moment(self.ring.step, self.ring.beat, self.ring.time)
            Packer(self.ring.write).text(Event.STOP, moment, facts={"outcome": outcome, **facts})
        # The header is read only where the STOP is lost: what is not known is no failure.
        failed = "finished" if outcome == UNKNOWN else "exit"
        self.ring.close(outcome if outcome in OUTCOMES else failed)


@dataclass
class Mirrors:
    """All mirrors of one run; `identity` is rank 0's own, `drop` counts in its ring."""

    identity: Identity
    drop: Callable[[str, int], None]
    rings: dict[int, Mirror] = field(default_factory=dict)
    _waiting: deque[tuple[int, Chunk]] = field(default_factory=deque)

    def take(self, chunks: Iterable[tuple[int, Chunk]]) -> None:
        """Chunks that came in, by rank, to be put away."""
        self._waiting.extend(each for each in chunks if each[1].payloads or each[1].lost)

    def put_away(self, turns: int = 1) -> None:
        """Write a part of what came in: all of it within `turns` calls."""
        if not self._waiting:
            return
        for _ in range(min(len(self._waiting), max(FEWEST_AT_ONCE, len(self._waiting) // turns))):
            rank, chunk = self._waiting.popleft()
            mirror = self.rings.get(rank) or self._made(rank, chunk)
            if mirror is None:
                self.drop("behind", len(chunk.payloads) + chunk.lost)
                continue
            if chunk.lost:
                mirror.ring.drop("behind", chunk.lost)
            for payload in chunk.payloads:
                if payload[:1] != IDENTITY:
                    mirror.write(payload)

    def close(self, rank: int, outcome: str, facts: Mapping[str, str]) -> None:
        """That rank is heard no more."""
        mirror = self.rings.pop(rank, None)
        if mirror is not None:
            mirror.close(outcome, facts)

    def abandon(self) -> None:
        """In a forked child: unmapped any later, this memory may be somebody else's by then."""
        for mirror in self.rings.values():
            mirror.ring.abandon()

    def _made(self, rank: int, chunk: Chunk) -> Mirror | None:
        try:
            told = described(chunk.payloads)
            if told is None:
                return None
            who = _identity(self.identity, rank, told)
            path = paths.ring_path(who.run, who.attempt, rank)
            capacity = fitting(path.parent, CAPACITY, sharers=who.world_size)
            mirror = Mirror(RingWriter(path, who, capacity))
        except (OSError, ValueError, TypeError, KeyError):
            # No room for it, or not the words of a rank: the others are heard.
            return None
        self.rings[rank] = mirror
        return mirror


def _identity(ours: Identity, rank: int, told: Mapping[str, Any]) -> Identity:
    """The sender's identity, in our run and our attempt: nodes may count theirs otherwise."""
    return replace(
        ours,
        rank=rank,
        local_rank=int(told["local_rank"]),
        local_world_size=int(told["local_world_size"]),
        host=str(told["host"])[:256],
    )
