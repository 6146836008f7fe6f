"""Records of one TensorBoard event file.

A record is its length in 8 bytes, their checksum, the payload, and the payload's checksum. A record
cut off at the end of the file may still be being written and is read by a later poll. This decoder
replaces the `tensorboard` package, which is a heavy dependency and stops at a damaged record.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from itertools import compress
from pathlib import Path
from struct import Struct, unpack

from sentinel.readers.crc32c import masked_crc32c
from sentinel.readers.log_file import open_binary_log

CHUNK_BYTES = 2**20
MAX_PAYLOAD_BYTES = 2**24
"""A longer payload is not a record of numbers; its header counts as damage."""

MAX_CHECKED_BYTES = 2**16
"""Checksums of longer payloads are not verified: they are images and histograms."""

HEADER_BYTES, FOOTER_BYTES = 12, 4
MAX_CACHED_HEADERS = 4096
_HEADER = Struct("<QI")


@dataclass
class EventFile:
    """`poll` returns the payloads after `offset`; `damaged_records` counts damaged sections.

    `payload_offsets` are the offsets in the file of the payloads that `poll` last returned.
    """

    path: Path
    offset: int = 0
    damaged_records: int = 0
    payload_offsets: list[int] = field(default_factory=list)
    _header_cache: dict[bytes, int] = field(default_factory=dict)
    _is_resyncing: bool = False

    def poll(self) -> list[bytes]:
        """The next payloads in order; none if no further record is complete. Raises OSError."""
        while True:
            data = self._read_chunk(CHUNK_BYTES)
            payloads, used = self._split_records(data)
            self.offset += used
            if payloads or not used:
                return payloads

    def _read_chunk(self, count: int) -> bytes:
        with open_binary_log(self.path) as file:
            file.seek(self.offset)
            data = file.read(count)
            size = HEADER_BYTES + self._payload_length(data[:HEADER_BYTES]) + FOOTER_BYTES
            # A record may be longer than a chunk.
            return data + file.read(size - len(data)) if size > len(data) >= HEADER_BYTES else data

    def _split_records(self, data: bytes) -> tuple[list[bytes], int]:
        """The payloads with valid checksums, and how many bytes they and skipped damage take."""
        payloads: list[bytes] = []
        offsets: list[int] = []
        checksums: list[bytes] = []
        cache, offset, end = self._header_cache, 0, len(data)
        while end - offset >= HEADER_BYTES:
            header = data[offset : offset + HEADER_BYTES]
            length = cache[header] if header in cache else self._payload_length(header)
            if length < 0:
                if not any(data[offset:]):
                    # Space that a file system allocated ahead of the data.
                    break
                offset = self._skip_damage(data, offset)
                continue
            self._is_resyncing = False
            payload_end = offset + HEADER_BYTES + length
            if payload_end + FOOTER_BYTES > end:
                break
            offsets.append(self.offset + offset + HEADER_BYTES)
            payloads.append(data[offset + HEADER_BYTES : payload_end])
            checksums.append(data[payload_end : payload_end + FOOTER_BYTES])
            offset = payload_end + FOOTER_BYTES
        return self._verified(payloads, offsets, b"".join(checksums)), offset

    def _payload_length(self, header: bytes) -> int:
        """Length of the payload after that header; -1 if it is not a header."""
        if len(header) < HEADER_BYTES:
            return -1
        length, checksum = _HEADER.unpack(header)
        if length > MAX_PAYLOAD_BYTES or masked_crc32c(header[:8]) != checksum:
            return -1
        if len(self._header_cache) < MAX_CACHED_HEADERS:
            # Records of one tag mostly have one length.
            self._header_cache[header] = length
        return int(length)

    def _skip_damage(self, data: bytes, offset: int) -> int:
        """Offset of the next header, or of the last bytes that may be the start of one."""
        # Logs of other formats do not need numpy, and are opened by this module too.
        from sentinel.readers._crc32c_arrays import find_record_header  # noqa: PLC0415

        if not self._is_resyncing:
            self.damaged_records += 1
        self._is_resyncing = True
        while (distance := find_record_header(data[offset + 1 :])) >= 0:
            offset += 1 + distance
            if self._payload_length(data[offset : offset + HEADER_BYTES]) >= 0:
                return offset
        return len(data) - HEADER_BYTES + 1

    def _verified(self, payloads: list[bytes], offsets: list[int], checksums: bytes) -> list[bytes]:
        """The payloads with a valid checksum, and those that are too long to be verified.

        Sets their offsets.
        """
        # As above.
        from sentinel.readers._crc32c_arrays import masked_crc32c_batch  # noqa: PLC0415

        stored = unpack(f"<{len(payloads)}I", checksums)
        checked = [p if len(p) <= MAX_CHECKED_BYTES else b"" for p in payloads]
        computed = masked_crc32c_batch(checked)
        is_valid = [
            actual == expected or len(part) < len(payload)
            for payload, part, expected, actual in zip(
                payloads, checked, stored, computed, strict=True
            )
        ]
        self.damaged_records += is_valid.count(False)
        self.payload_offsets = [*compress(offsets, is_valid)]
        return [*compress(payloads, is_valid)]
