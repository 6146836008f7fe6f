"""Event file: the records of one TensorBoard file, found by their lengths and checksums.

A record is its length in 8 bytes, the checksum of those, the payload, and its checksum. What is cut
off at the end of the file may still be being written, and is left for the next look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct

from sentinel.sources.crc32c import all_masked, first_header, masked

CHUNK = 2**20
LARGEST = 2**24
"""Bytes of a payload; a longer one is no record of numbers, and is looked past."""

LONGEST_CHECKED = 2**16
"""Bytes of a payload whose checksum is looked at: longer ones are pictures and histograms."""

HEAD, FOOT = 12, 4
MOST_HEADS = 4096
_LENGTH = Struct("<QI")
_SUM = Struct("<I")


@dataclass
class EventFile:
    """`poll` gives the whole payloads behind `offset`; `skipped` counts damaged stretches."""

    path: Path
    offset: int = 0
    skipped: int = 0
    _heads: set[bytes] = field(default_factory=set)
    _lost: bool = False

    def poll(self) -> list[bytes]:
        """The next payloads, in order; none where no more are whole. Raises OSError."""
        while True:
            data = self._read(CHUNK)
            payloads, used = self._split(data)
            self.offset += used
            if payloads or not used:
                return payloads

    def size(self) -> int:
        """Bytes of the file at this moment. Raises OSError."""
        return self.path.stat().st_size

    def _read(self, count: int) -> bytes:
        with self.path.open("rb") as file:
            file.seek(self.offset)
            data = file.read(count)
            if len(data) >= HEAD and self._is_head(data[:HEAD]):
                length = _LENGTH.unpack_from(data)[0]
                if len(data) < HEAD + length + FOOT <= LARGEST + HEAD + FOOT:
                    data += file.read(HEAD + length + FOOT - len(data))
            return data

    def _split(self, data: bytes) -> tuple[list[bytes], int]:
        """The payloads whose checksums hold, and how many bytes are done with."""
        payloads: list[bytes] = []
        sums: list[int] = []
        at, end = 0, len(data)
        while end - at >= HEAD:
            if not self._is_head(data[at : at + HEAD]):
                if not any(data[at:]):
                    # Room that a file system made ahead of what is to be written there.
                    break
                at = self._past_damage(data, at)
                continue
            self._lost = False
            length = _LENGTH.unpack_from(data, at)[0]
            over = at + HEAD + length + FOOT
            if over > end:
                break
            payloads.append(data[at + HEAD : over - FOOT])
            sums.append(_SUM.unpack_from(data, over - FOOT)[0])
            at = over
        return self._sound(payloads, sums), at

    def _is_head(self, head: bytes) -> bool:
        if head in self._heads:
            return True
        length, told = _LENGTH.unpack(head)
        if length > LARGEST or masked(head[:8]) != told:
            return False
        if len(self._heads) < MOST_HEADS:
            # Records of one kind have one length.
            self._heads.add(head)
        return True

    def _past_damage(self, data: bytes, at: int) -> int:
        """Where the next head is, or the last bytes that may be the start of one."""
        if not self._lost:
            self.skipped += 1
        self._lost = True
        while (found := first_header(data[at + 1 :])) >= 0:
            at += 1 + found
            if self._is_head(data[at : at + HEAD]):
                return at
        return len(data) - HEAD + 1

    def _sound(self, payloads: list[bytes], sums: list[int]) -> list[bytes]:
        short = [i for i, payload in enumerate(payloads) if len(payload) <= LONGEST_CHECKED]
        found = all_masked([payloads[i] for i in short])
        bad = {i for i, value in zip(short, found, strict=True) if value != sums[i]}
        self.skipped += len(bad)
        return [payload for i, payload in enumerate(payloads) if i not in bad] if bad else payloads
