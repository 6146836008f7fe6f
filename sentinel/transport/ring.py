"""Ring: a rank's records in shared memory, one writer, one reader, nobody ever waits.

The writer overwrites the oldest frames; a reader that falls behind learns by the sequence numbers
exactly how many it lost. Nothing is believed but a frame whose checksum and number are right, so a
writer killed at any instruction, or a machine that reorders stores, cannot make a false record.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from zlib import crc32

from sentinel.transport.identity import Identity
from sentinel.transport.process import Process
from sentinel.transport.ring_layout import (
    DROP_REASONS,
    FRAME_HEADER,
    HEADER_SIZE,
    OUTCOMES,
    PROGRESS_OFFSET,
    PROGRESS_STRUCT,
    WORD_BACKWARD_STEP_INDEX,
    WORD_DROPS,
    WORD_ERRORS,
    WORD_OUTCOME,
    WORD_POSITION,
    WORD_SEQUENCE,
    WRAP_MARKER,
    RingHeader,
    pack_header,
    parse_header,
)

__all__ = [
    "DROP_REASONS",
    "RingCursor",
    "RingError",
    "RingHeader",
    "RingReadResult",
    "RingReader",
    "RingWriter",
]

DEFAULT_CAPACITY_BYTES = 4 << 20
"""Bytes of frames by default: about 20,000 records of twenty values."""
MIN_CAPACITY_BYTES = 64 << 10
"""Bytes below which a ring is not worth having."""
NO_BYTE_LIMIT = 1 << 62
_PAGE_SIZE = 4096
_FRAME_HEADER_SIZE = FRAME_HEADER.size
_PROGRESS_SLICE = slice(PROGRESS_OFFSET, PROGRESS_OFFSET + PROGRESS_STRUCT.size)
_pack_progress = PROGRESS_STRUCT.pack


class RingError(ValueError):
    """A file that cannot be read as a ring, and why."""


@dataclass(frozen=True, slots=True)
class RingCursor:
    """How far a reader has come: bytes passed, and the number of the last frame passed."""

    position: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class RingReadResult:
    """What one reading brought: payloads in order, where to go on, frames lost and damaged."""

    payloads: list[bytes]
    cursor: RingCursor
    lost_frames: int = 0
    corrupt_frames: int = 0
    sequences: Sequence[int] = ()
    """The number of each payload's frame."""


class RingWriter:
    """Makes a ring and writes to it. Not for several threads at once: the caller sees to that.

    `step`, `beat` and `time` are of the last step taken, and are published with every frame.
    Touching it in a forked child ends the child, since the mapping stays with the parent.
    """

    def __init__(
        self, path: Path, identity: Identity, capacity: int = DEFAULT_CAPACITY_BYTES
    ) -> None:
        """Raises FileExistsError if that ring is there, OSError if there is no room for it."""
        self.path = path
        self.capacity = capacity & ~7
        self.max_payload_bytes = self.capacity // 8
        """Bytes a payload may have."""
        page = pack_header(identity, Process.current(), self.capacity, time.time())
        self._map = _create_mapped_file(path, page, self.capacity)
        self._words = memoryview(self._map)[:HEADER_SIZE].cast("Q")
        self.step = self.step_index = 0
        self.time = time.time()
        self.overhead_seconds = 0.0
        """Seconds our code cost the training thread; shown with the next frame."""
        self._position = self._sequence = 0

    def write(self, payload: bytes) -> None:
        """Append one frame, over the oldest ones; beyond `largest` bytes it is dropped."""
        size = len(payload)
        if size > self.max_payload_bytes:
            self.count_drop("too_large")
            return
        position = self._position
        at = position % self.capacity
        taken = (_FRAME_HEADER_SIZE + size + 7) & ~7
        if at + taken > self.capacity:
            if self.capacity - at >= _FRAME_HEADER_SIZE:
                FRAME_HEADER.pack_into(self._map, HEADER_SIZE + at, 0, WRAP_MARKER, 0)
            position += self.capacity - at
            at = 0
        sequence = self._sequence + 1
        start = HEADER_SIZE + at + _FRAME_HEADER_SIZE
        self._map[start : start + size] = payload
        crc = crc32(payload, sequence & 0xFFFFFFFF)
        FRAME_HEADER.pack_into(self._map, start - _FRAME_HEADER_SIZE, crc, size, sequence)
        # Ours first: an interrupt between here and the publication must not reuse the number.
        self._sequence, self._position = sequence, position + taken
        # Copied as a whole: `pack_into` blanks its target first, and whoever is killed just then
        # leaves a ring that looks empty.
        self._map[_PROGRESS_SLICE] = _pack_progress(
            self.step, self.step_index, self.time, self.overhead_seconds, sequence, position + taken
        )

    def publish_step(self, step: int, step_index: int, now: float) -> None:
        """Show the step just taken, at once, whether or not a record follows."""
        self.step, self.step_index, self.time = step, step_index, now
        self._map[_PROGRESS_SLICE] = _pack_progress(
            step, step_index, now, self.overhead_seconds, self._sequence, self._position
        )

    def begin_backward(self, step_index: int) -> None:
        """Show that the step with this beat is under way."""
        self._words[WORD_BACKWARD_STEP_INDEX] = step_index

    def count_drop(self, reason: str, count: int = 1) -> None:
        """Count values refused, or records lost, for one of `DROP_REASONS`."""
        self._words[WORD_DROPS + DROP_REASONS.index(reason)] += count

    def count_error(self) -> None:
        """Count an error of ours that was swallowed."""
        self._words[WORD_ERRORS] += 1

    def abandon(self) -> None:
        """Let go in a forked child, to which the memory does not belong."""
        self._words.release()
        self._map.close()

    def close(self, outcome: str) -> None:
        """Say how it ended (one of `OUTCOMES`) and let go of the memory; the file stays."""
        self._words[WORD_OUTCOME] = OUTCOMES.index(outcome)
        self.publish_step(self.step, self.step_index, self.time)
        self.abandon()


def fitting_capacity(
    directory: Path, max_capacity: int = DEFAULT_CAPACITY_BYTES, ring_count: int = 1
) -> int:
    """Capacity that `directory` can hold `sharers` times in half of its free space, or 0."""
    space = os.statvfs(directory)
    free = space.f_bavail * space.f_frsize // (2 * max(1, ring_count)) - HEADER_SIZE
    capacity = min(max_capacity, free) & ~(_PAGE_SIZE - 1)
    return capacity if capacity >= MIN_CAPACITY_BYTES else 0


def _create_mapped_file(path: Path, header: bytes, capacity: int) -> mmap.mmap:
    """A mapped ring file that appears under its name only when it is whole."""
    unborn = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(unborn, flags, 0o600)
    try:
        # Reserved for good: writing to a page that a full tmpfs cannot give is SIGBUS.
        os.posix_fallocate(descriptor, 0, HEADER_SIZE + capacity)
        mapped = mmap.mmap(descriptor, HEADER_SIZE + capacity)
        mapped.madvise(mmap.MADV_DONTFORK)
        for at in range(0, len(mapped), _PAGE_SIZE):
            mapped[at] = 0
        mapped[:HEADER_SIZE] = header
        os.link(unborn, path)
    finally:
        os.close(descriptor)
        unborn.unlink()
    return mapped


@dataclass
class RingReader:
    """Reads a ring, live or left behind. Keeps no place of its own: the caller holds the cursor.

    `patience` is how long, in seconds, a frame behind the tail may look wrong before it counts as
    damaged rather than as not yet arrived.
    """

    path: Path
    grace_seconds: float = 1.0
    _map: mmap.mmap = field(init=False, repr=False)
    _words: memoryview = field(init=False, repr=False)
    _capacity: int = field(init=False, repr=False)
    _suspect_frame: tuple[int, float] = field(init=False, repr=False, default=(-1, 0.0))

    def __post_init__(self) -> None:
        """Raises RingError naming the file, FileNotFoundError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size < HEADER_SIZE:
                raise RingError(f"{self.path} is cut short: {size} bytes.")
            self._map = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        header = self.read_header()
        self._capacity = header.capacity
        self._words = memoryview(self._map)[:HEADER_SIZE].cast("Q")
        if size != HEADER_SIZE + header.capacity or header.capacity < 8:
            message = f"{self.path} is cut short: {size} of {HEADER_SIZE + header.capacity} bytes."
            raise RingError(message)

    def read_header(self) -> RingHeader:
        """What the ring says now. Raises RingError."""
        try:
            return parse_header(self._map[:HEADER_SIZE])
        except ValueError as error:
            raise RingError(f"{self.path} {error}.") from error

    def read(self, cursor: RingCursor, max_bytes: int = NO_BYTE_LIMIT) -> RingReadResult:
        """Everything written after `cursor`; of more than `most` bytes, the first of them."""
        stop = cursor.position + max_bytes
        payloads: list[bytes] = []
        sequences: list[int] = []
        lost = corrupt = 0
        while cursor.position < min(stop, end := self._words[WORD_POSITION]):
            payload, after = self._read_frame(cursor.position, end)
            if after.sequence == cursor.sequence + 1:
                payloads.append(payload)
                sequences.append(after.sequence)
                cursor = after
                continue
            overrun = self._is_overrun(cursor.position)
            if not overrun and self._may_still_arrive(cursor.position):
                break
            found = self._find_next_frame(cursor, is_overrun=overrun)
            if found is None:
                break
            missing = found.sequence - cursor.sequence
            lost, corrupt = lost + missing * overrun, corrupt + missing * (not overrun)
            cursor = found
        return RingReadResult(payloads, cursor, lost, corrupt, sequences)

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._map.close()

    def _read_frame(self, position: int, end: int) -> tuple[bytes, RingCursor]:
        """The frame at `position` and the cursor behind it; sequence 0 where there is no whole one.

        The payload is copied before it is checked, so a writer that comes by cannot spoil it after.
        """
        at = position % self._capacity
        crc, size, sequence = self._read_frame_header(at)
        if size == WRAP_MARKER:
            position, at = position + self._capacity - at, 0
            crc, size, sequence = self._read_frame_header(at)
        start = HEADER_SIZE + at + _FRAME_HEADER_SIZE
        if position >= end or size > min(end - position, self._capacity - at) - _FRAME_HEADER_SIZE:
            return b"", RingCursor()
        payload = self._map[start : start + size]
        if crc32(payload, sequence & 0xFFFFFFFF) != crc:
            return b"", RingCursor()
        return payload, RingCursor(position + ((_FRAME_HEADER_SIZE + size + 7) & ~7), sequence)

    def _read_frame_header(self, offset: int) -> tuple[int, int, int]:
        if self._capacity - offset < _FRAME_HEADER_SIZE:
            return 0, WRAP_MARKER, 0
        crc, size, sequence = FRAME_HEADER.unpack_from(self._map, HEADER_SIZE + offset)
        return crc, size, sequence

    def _is_overrun(self, position: int) -> bool:
        """Whether the writer may be at, or beyond, that place again: it writes, then publishes."""
        reach = self._words[WORD_POSITION] + self._capacity // 8 + 2 * _FRAME_HEADER_SIZE
        return position + self._capacity < reach

    def _may_still_arrive(self, position: int) -> bool:
        """Whether a frame that looks wrong may yet come right: stores can be seen out of order."""
        now = time.monotonic()
        if self._suspect_frame[0] != position:
            self._suspect_frame = (position, now)
        return now - self._suspect_frame[1] < self.grace_seconds

    def _find_next_frame(self, cursor: RingCursor, *, is_overrun: bool) -> RingCursor | None:
        """Just before the next whole frame after `cursor`, if there is one yet."""
        end, last = self._words[WORD_POSITION], self._words[WORD_SEQUENCE]
        start = cursor.position + 8
        if is_overrun:
            # A margin ahead of the writer, or the oldest frame would be gone before it is read.
            start = max(start, end - self._capacity + self._capacity // 4 & ~7)
        for position in range(start, end, 8):
            sequence = self._read_frame(position, end)[1].sequence
            if cursor.sequence < sequence <= last:
                return RingCursor(position, sequence - 1)
        return None
