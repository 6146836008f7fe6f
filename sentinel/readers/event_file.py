"""Event file: the records of one TensorBoard file, found by their lengths and checksums.

A record is its length in 8 bytes, the checksum of those, the payload, and its checksum. What is cut
off at the end of the file may still be being written, and is left for the next look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct, unpack

from sentinel.readers.crc32c import find_record_header, masked_crc32c, masked_crc32c_batch

CHUNK_BYTES = 2**20
MAX_PAYLOAD_BYTES = 2**24
"""Bytes of a payload; a longer one is no record of numbers, and is looked past."""

MAX_CHECKED_BYTES = 2**16
"""Bytes of a payload whose checksum is looked at: longer ones are pictures and histograms."""

HEADER_BYTES, FOOTER_BYTES = 12, 4
MAX_CACHED_HEADERS = 4096
_HEADER = Struct("<QI")


@dataclass
class EventFile:
    """`poll` gives the whole payloads behind `offset`; `skipped` counts damaged stretches."""

    path: Path
    offset: int = 0
    damaged_records: int = 0
    _header_cache: dict[bytes, int] = field(default_factory=dict)
    _is_resyncing: bool = False

    def poll(self) -> list[bytes]:
        """The next payloads, in order; none where no more are whole. Raises OSError."""
        while True:
            data = self._read_chunk(CHUNK_BYTES)
            payloads, used = self._split_records(data)
            self.offset += used
            if payloads or not used:
                return payloads

    def size(self) -> int:
        """Bytes of the file at this moment. Raises OSError."""
        return self.path.stat().st_size

    def _read_chunk(self, count: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read(count)
            whole = HEADER_BYTES + self._payload_length(data[:HEADER_BYTES]) + FOOTER_BYTES
            # A record may be longer than what is read at a time.
            return (
                data + file.read(whole - len(data)) if whole > len(data) >= HEADER_BYTES else data
            )

    def _split_records(self, data: bytes) -> tuple[list[bytes], int]:
        """The payloads whose checksums hold, and how many bytes are done with."""
        payloads: list[bytes] = []
        sums: list[bytes] = []
        heads, at, end = self._header_cache, 0, len(data)
        while end - at >= HEADER_BYTES:
            head = data[at : at + HEADER_BYTES]
            length = heads[head] if head in heads else self._payload_length(head)
            if length < 0:
                if not any(data[at:]):
                    # Room that a file system made ahead of what is to be written there.
                    break
                at = self._skip_damage(data, at)
                continue
            self._is_resyncing = False
            over = at + HEADER_BYTES + length
            if over + FOOTER_BYTES > end:
                break
            payloads.append(data[at + HEADER_BYTES : over])
            sums.append(data[over : over + FOOTER_BYTES])
            at = over + FOOTER_BYTES
        return self._verified(payloads, b"".join(sums)), at

    def _payload_length(self, header: bytes) -> int:
        """Bytes of the payload behind that head; -1 if it is none."""
        if len(header) < HEADER_BYTES:
            return -1
        length, told = _HEADER.unpack(header)
        if length > MAX_PAYLOAD_BYTES or masked_crc32c(header[:8]) != told:
            return -1
        if len(self._header_cache) < MAX_CACHED_HEADERS:
            # Records of one kind have one length.
            self._header_cache[header] = length
        return int(length)

    def _skip_damage(self, data: bytes, offset: int) -> int:
        """Where the next head is, or the last bytes that may be the start of one."""
        if not self._is_resyncing:
            self.damaged_records += 1
        self._is_resyncing = True
        while (found := find_record_header(data[offset + 1 :])) >= 0:
            offset += 1 + found
            if self._payload_length(data[offset : offset + HEADER_BYTES]) >= 0:
                return offset
        return len(data) - HEADER_BYTES + 1

    def _verified(self, payloads: list[bytes], checksums: bytes) -> list[bytes]:
        """Those whose checksum is the one written behind them."""
        told = unpack(f"<{len(payloads)}I", checksums)
        checked = [p if len(p) <= MAX_CHECKED_BYTES else b"" for p in payloads]
        sound = [
            payload
            for payload, look, own, other in zip(
                payloads, checked, masked_crc32c_batch(checked), told, strict=True
            )
            if own == other or len(look) < len(payload)
        ]
        self.damaged_records += len(payloads) - len(sound)
        return sound
