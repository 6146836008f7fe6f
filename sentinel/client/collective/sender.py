"""Outgoing: a rank's own ring, read a second time, and put into chunks for rank 0.

The ring is the buffer: nothing is done when something is logged. Whoever logs more than chunks can
carry has its oldest numbers left out, and counted, rather than everything told late.
"""

from __future__ import annotations

import json
from collections import deque
from collections.abc import Iterable
from dataclasses import asdict, dataclass, field
from itertools import islice
from pathlib import Path

from sentinel.client.collective import chunk
from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.record_codec import VALUES
from sentinel.transport.ring import FAR, Cursor, RingReader

IDENTITY = b"I"
"""Kind of the payload that identifies a sender, beside those of `transport.record_codec`."""
BEHIND = 16 * chunk.SIZE
"""Bytes of the ring not yet sent beyond which the oldest numbers are left out."""
_AT_ONCE, _TURNS = 2 * chunk.SIZE, 4
"""Bytes read at once by who is behind, and how often: some two milliseconds."""
_SAMPLE = b'T["' + Event.SAMPLE.value.encode()


@dataclass
class Outgoing:
    """What of a ring is still to be sent. `silent` ranks have nothing to say: they are read."""

    path: Path
    identity: Identity
    silent: bool = False
    cursor: Cursor = field(default_factory=Cursor)
    lost: int = 0
    """Records that were not sent, since the last chunk."""
    _held: deque[bytes] = field(default_factory=deque)

    def __post_init__(self) -> None:
        """Raises RingError, OSError."""
        self._reader = RingReader(self.path)
        if not self.silent:
            self._held.append(IDENTITY + json.dumps(asdict(self.identity)).encode())

    def fill(self, memory: bytearray, number: int) -> None:
        """Put what comes next, as far as it fits, into a chunk."""
        going: list[bytes] = []
        if not self.silent:
            self._read()
            room = chunk.ROOM
            while self._held and (room := room - chunk.taken(self._held[0])) >= 0:
                going.append(self._held.popleft())
        chunk.write(memory, number, going, self.lost)
        self.lost = 0

    def last(self, memory: bytearray, number: int, ending: int) -> None:
        """Put what is left into the last chunk: of too much, the end of it."""
        going: list[bytes] = []
        if not self.silent:
            self._hold(FAR, behind=False)
            going = self._newest()
        chunk.write(memory, number, going, self.lost, ending)

    def close(self) -> None:
        """Let go of the memory."""
        self._reader.close()

    def _read(self) -> None:
        """Hold at least a chunk's worth, if there is as much; a bounded part of it at a time."""
        for _ in range(_TURNS):
            behind = self._reader.header().position - self.cursor.position > BEHIND
            if not behind and sum(map(len, self._held)) > chunk.ROOM:
                return
            if not self._hold(_AT_ONCE if behind else chunk.ROOM, behind=behind):
                return

    def _hold(self, most: int, *, behind: bool) -> bool:
        """Read on by that many bytes; whether there was anything."""
        batch = self._reader.read(self.cursor, most)
        self.cursor = batch.cursor
        self.lost += batch.lost + batch.corrupt
        for payload in batch.payloads:
            if self._passes(payload, behind=behind):
                self._held.append(payload)
            else:
                self.lost += 1
        return bool(batch.payloads)

    def _passes(self, payload: bytes, *, behind: bool) -> bool:
        if payload.startswith(_SAMPLE):
            # A text more or less is no loss; it must not hold up the numbers.
            return not behind and len(payload) < chunk.ROOM // 8
        return chunk.taken(payload) <= chunk.ROOM and not (behind and payload[:1] == VALUES)

    def _newest(self) -> list[bytes]:
        """The end of what is held that fits, and before all else what is no number."""
        room = chunk.ROOM
        kept: set[int] = set()
        for numbers in (False, True):
            for at in range(len(self._held) - 1, -1, -1):
                payload = self._held[at]
                if (payload[:1] == VALUES) is numbers and chunk.taken(payload) <= room:
                    room -= chunk.taken(payload)
                    kept.add(at)
        self.lost += len(self._held) - len(kept)
        return [payload for at, payload in enumerate(self._held) if at in kept]


def described(payloads: Iterable[bytes]) -> dict[str, object] | None:
    """What the first payload says of its sender, if it does. Raises ValueError."""
    for payload in islice(payloads, 1):
        if payload[:1] == IDENTITY:
            told = json.loads(payload[1:])
            if isinstance(told, dict):
                return told
    return None
