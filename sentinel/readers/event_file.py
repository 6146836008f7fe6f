"""Event file: the records of one TensorBoard file, found by their lengths and checksums.

A record is its length in 8 bytes, the checksum of those, the payload, and its checksum. What is cut
off at the end of the file may still be being written, and is left for the next look.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct, unpack

from sentinel.readers.crc32c import all_masked, first_header, masked

CHUNK = 2**20
LARGEST = 2**24
"""Bytes of a payload; a longer one is no record of numbers, and is looked past."""

LONGEST_CHECKED = 2**16
"""Bytes of a payload whose checksum is looked at: longer ones are pictures and histograms."""

HEAD, FOOT = 12, 4
MOST_HEADS = 4096
_LENGTH = Struct("<QI")


@dataclass
class EventFile:
    """`poll` gives the whole payloads behind `offset`; `skipped` counts damaged stretches."""

    path: Path
    offset: int = 0
    skipped: int = 0
    _heads: dict[bytes, int] = field(default_factory=dict)
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
            whole = HEAD + self._length(data[:HEAD]) + FOOT
            # A record may be longer than what is read at a time.
            return data + file.read(whole - len(data)) if whole > len(data) >= HEAD else data

    def _split(self, data: bytes) -> tuple[list[bytes], int]:
        """The payloads whose checksums hold, and how many bytes are done with."""
        payloads: list[bytes] = []
        sums: list[bytes] = []
        heads, at, end = self._heads, 0, len(data)
        while end - at >= HEAD:
            head = data[at : at + HEAD]
            length = heads[head] if head in heads else self._length(head)
            if length < 0:
                if not any(data[at:]):
                    # Room that a file system made ahead of what is to be written there.
                    break
                at = self._past_damage(data, at)
                continue
            self._lost = False
            over = at + HEAD + length
            if over + FOOT > end:
                break
            payloads.append(data[at + HEAD : over])
            sums.append(data[over : over + FOOT])
            at = over + FOOT
        return self._sound(payloads, b"".join(sums)), at

    def _length(self, head: bytes) -> int:
        """Bytes of the payload behind that head; -1 if it is none."""
        if len(head) < HEAD:
            return -1
        length, told = _LENGTH.unpack(head)
        if length > LARGEST or masked(head[:8]) != told:
            return -1
        if len(self._heads) < MOST_HEADS:
            # Records of one kind have one length.
            self._heads[head] = length
        return int(length)

    def _past_damage(self, data: bytes, at: int) -> int:
        """Where the next head is, or the last bytes that may be the start of one."""
        if not self._lost:
            self.skipped += 1
        self._lost = True
        while (found := first_header(data[at + 1 :])) >= 0:
            at += 1 + found
            if self._length(data[at : at + HEAD]) >= 0:
                return at
        return len(data) - HEAD + 1

    def _sound(self, payloads: list[bytes], sums: bytes) -> list[bytes]:
        """Those whose checksum is the one written behind them."""
        told = unpack(f"<{len(payloads)}I", sums)
        checked = [p if len(p) <= LONGEST_CHECKED else b"" for p in payloads]
        sound = [
            payload
            for payload, look, own, other in zip(
                payloads, checked, all_masked(checked), told, strict=True
            )
            if own == other or len(look) < len(payload)
        ]
        self.skipped += len(payloads) - len(sound)
        return sound
