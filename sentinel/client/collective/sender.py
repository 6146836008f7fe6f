"""Reads a rank's own ring a second time and fills chunks for rank 0.

The ring is the buffer, so logging does no extra work. If a rank logs more than chunks can carry,
its oldest values are dropped and counted, so that the rest is not late.
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
from sentinel.transport.ring import NO_LIMIT, RingCursor, RingReader

IDENTITY_KIND = b"I"
"""Kind of the payload that identifies a sender, beside those of `transport.record_codec`."""
MAX_BACKLOG_BYTES = 16 * chunk.CHUNK_BYTES
"""Unsent bytes of the ring beyond which the oldest values are dropped."""
_CATCH_UP_BYTES, _CATCH_UP_READS = 2 * chunk.CHUNK_BYTES, 4
"""Bytes per read of a sender that is behind, and reads per chunk: about two milliseconds."""
_SAMPLE_PREFIX = b'T["' + Event.SAMPLE.value.encode()
_LAYERS_PREFIX = b'T["' + Event.LAYERS.value.encode()


@dataclass
class CollectiveSender:
    """The unsent part of a ring. A local rank sends nothing: rank 0's agent reads its ring."""

    ring_path: Path
    identity: Identity
    is_local: bool = False
    cursor: RingCursor = field(default_factory=RingCursor)
    lost_records: int = 0
    """Records dropped since the last chunk."""
    _pending: deque[bytes] = field(default_factory=deque)

    def __post_init__(self) -> None:
        """Raises RingError, OSError."""
        self._reader = RingReader(self.ring_path)
        if not self.is_local:
            self._pending.append(IDENTITY_KIND + json.dumps(asdict(self.identity)).encode())

    def fill_chunk(self, buffer: bytearray, number: int) -> None:
        """Fill a chunk with the next payloads that fit."""
        payloads: list[bytes] = []
        if not self.is_local:
            self._read_ahead()
            free = chunk.MAX_PAYLOAD_BYTES
            while self._pending and (free := free - chunk.encoded_size(self._pending[0])) >= 0:
                payloads.append(self._pending.popleft())
        chunk.encode_into(buffer, number, payloads, self.lost_records)
        self.lost_records = 0

    def fill_final_chunk(self, buffer: bytearray, number: int, outcome_index: int) -> None:
        """Fill the final chunk with the rest: the newest payloads, if not all fit."""
        payloads: list[bytes] = []
        if not self.is_local:
            self._read_ring(NO_LIMIT, is_behind=False)
            payloads = self._select_newest()
        chunk.encode_into(buffer, number, payloads, self.lost_records, outcome_index)

    def close(self) -> None:
        """Unmap the ring."""
        self._reader.close()

    def _read_ahead(self) -> None:
        """Read ahead at least one chunk, if available, in a bounded number of reads."""
        for _ in range(_CATCH_UP_READS):
            backlog = self._reader.read_header().position - self.cursor.position
            is_behind = backlog > MAX_BACKLOG_BYTES
            if not is_behind and sum(map(len, self._pending)) > chunk.MAX_PAYLOAD_BYTES:
                return
            if not self._read_ring(
                _CATCH_UP_BYTES if is_behind else chunk.MAX_PAYLOAD_BYTES, is_behind=is_behind
            ):
                return

    def _read_ring(self, max_bytes: int, *, is_behind: bool) -> bool:
        """Read up to `max_bytes`. Returns whether there was anything."""
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
            # A sampled text may be dropped; it must not delay values.
            return not is_behind and len(payload) < chunk.MAX_PAYLOAD_BYTES // 8
        if is_behind and payload.startswith(_LAYERS_PREFIX):
            return False
        return chunk.encoded_size(payload) <= chunk.MAX_PAYLOAD_BYTES and not (
            is_behind and payload[:1] == VALUES_KIND
        )

    def _select_newest(self) -> list[bytes]:
        """The newest pending payloads that fit: events, then values, then those of layers."""
        free = chunk.MAX_PAYLOAD_BYTES
        selected: set[int] = set()
        for rank in range(3):
            for at in range(len(self._pending) - 1, -1, -1):
                payload = self._pending[at]
                size = chunk.encoded_size(payload)
                if _final_rank(payload) == rank and size <= free:
                    free -= size
                    selected.add(at)
        self.lost_records += len(self._pending) - len(selected)
        return [payload for at, payload in enumerate(self._pending) if at in selected]


def _final_rank(payload: bytes) -> int:
    """The place of the payload's kind in the final chunk."""
    if payload.startswith(_LAYERS_PREFIX):
        return 2
    return 1 if payload[:1] == VALUES_KIND else 0


def sender_identity(payloads: Iterable[bytes]) -> dict[str, object] | None:
    """The identity of the sender, if the first payload holds it. Raises ValueError."""
    for payload in islice(payloads, 1):
        if payload[:1] == IDENTITY_KIND:
            identity = json.loads(payload[1:])
            if isinstance(identity, dict):
                return identity
    return None
