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
from sentinel.transport.record_codec import VALUES_KIND
from sentinel.transport.ring import NO_BYTE_LIMIT, RingCursor, RingReader

IDENTITY_KIND = b"I"
"""Kind of the payload that identifies a sender, beside those of `transport.record_codec`."""
MAX_BACKLOG_BYTES = 16 * chunk.CHUNK_BYTES
"""Bytes of the ring not yet sent beyond which the oldest numbers are left out."""
_CATCH_UP_BYTES, _CATCH_UP_READS = 2 * chunk.CHUNK_BYTES, 4
"""Bytes read at once by who is behind, and how often: some two milliseconds."""
_SAMPLE_PREFIX = b'T["' + Event.SAMPLE.value.encode()


@dataclass
class CollectiveSender:
    """What of a ring is still to be sent. `silent` ranks have nothing to say: they are read."""

    ring_path: Path
    identity: Identity
    is_local: bool = False
    cursor: RingCursor = field(default_factory=RingCursor)
    lost_records: int = 0
    """Records that were not sent, since the last chunk."""
    _pending: deque[bytes] = field(default_factory=deque)

    def __post_init__(self) -> None:
        """Raises RingError, OSError."""
        self._reader = RingReader(self.ring_path)
        if not self.is_local:
            self._pending.append(IDENTITY_KIND + json.dumps(asdict(self.identity)).encode())

    def fill_chunk(self, buffer: bytearray, number: int) -> None:
        """Put what comes next, as far as it fits, into a chunk."""
        going: list[bytes] = []
        if not self.is_local:
            self._read_ahead()
            room = chunk.MAX_PAYLOAD_BYTES
            while self._pending and (room := room - chunk.encoded_size(self._pending[0])) >= 0:
                going.append(self._pending.popleft())
        chunk.encode_into(buffer, number, going, self.lost_records)
        self.lost_records = 0

    def fill_final_chunk(self, buffer: bytearray, number: int, outcome_index: int) -> None:
        """Put what is left into the last chunk: of too much, the end of it."""
        going: list[bytes] = []
        if not self.is_local:
            self._read_ring(NO_BYTE_LIMIT, is_behind=False)
            going = self._select_newest()
        chunk.encode_into(buffer, number, going, self.lost_records, outcome_index)

    def close(self) -> None:
        """Let go of the memory."""
        self._reader.close()

    def _read_ahead(self) -> None:
        """Hold at least a chunk's worth, if there is as much; a bounded part of it at a time."""
        for _ in range(_CATCH_UP_READS):
            behind = self._reader.read_header().position - self.cursor.position > MAX_BACKLOG_BYTES
            if not behind and sum(map(len, self._pending)) > chunk.MAX_PAYLOAD_BYTES:
                return
            if not self._read_ring(
                _CATCH_UP_BYTES if behind else chunk.MAX_PAYLOAD_BYTES, is_behind=behind
            ):
                return

    def _read_ring(self, max_bytes: int, *, is_behind: bool) -> bool:
        """Read on by that many bytes; whether there was anything."""
        batch = self._reader.read(self.cursor, max_bytes)
        self.cursor = batch.cursor
        self.lost_records += batch.lost_frames + batch.corrupt_frames
        for payload in batch.payloads:
            if self._is_sendable(payload, is_behind=is_behind):
                self._pending.append(payload)
            else:
                self.lost_records += 1
        return bool(batch.payloads)

    def _is_sendable(self, payload: bytes, *, is_behind: bool) -> bool:
        if payload.startswith(_SAMPLE_PREFIX):
            # A text more or less is no loss; it must not hold up the numbers.
            return not is_behind and len(payload) < chunk.MAX_PAYLOAD_BYTES // 8
        return chunk.encoded_size(payload) <= chunk.MAX_PAYLOAD_BYTES and not (
            is_behind and payload[:1] == VALUES_KIND
        )

    def _select_newest(self) -> list[bytes]:
        """The end of what is held that fits, and before all else what is no number."""
        room = chunk.MAX_PAYLOAD_BYTES
        kept: set[int] = set()
        for numbers in (False, True):
            for at in range(len(self._pending) - 1, -1, -1):
                payload = self._pending[at]
                if (payload[:1] == VALUES_KIND) is numbers and chunk.encoded_size(payload) <= room:
                    room -= chunk.encoded_size(payload)
                    kept.add(at)
        self.lost_records += len(self._pending) - len(kept)
        return [payload for at, payload in enumerate(self._pending) if at in kept]


def sender_identity(payloads: Iterable[bytes]) -> dict[str, object] | None:
    """What the first payload says of its sender, if it does. Raises ValueError."""
    for payload in islice(payloads, 1):
        if payload[:1] == IDENTITY_KIND:
            told = json.loads(payload[1:])
            if isinstance(told, dict):
                return told
    return None
