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
    FRAME,
    HEADER_SIZE,
    OUTCOMES,
    PROGRESS,
    PROGRESS_AT,
    WORD_BEGUN,
    WORD_DROPS,
    WORD_ERRORS,
    WORD_OUTCOME,
    WORD_POSITION,
    WORD_SEQUENCE,
    WRAP,
    Header,
    first_page,
    parse,
)

__all__ = ["DROP_REASONS", "Batch", "Cursor", "Header", "RingError", "RingReader", "RingWriter"]

CAPACITY = 4 << 20
"""Bytes of frames by default: about 20,000 records of twenty values."""
SMALLEST = 64 << 10
"""Bytes below which a ring is not worth having."""
FAR = 1 << 62
_PAGE = 4096
_HEAD = FRAME.size
_PROGRESS = slice(PROGRESS_AT, PROGRESS_AT + PROGRESS.size)
_progress = PROGRESS.pack


class RingError(ValueError):
    """A file that cannot be read as a ring, and why."""


@dataclass(frozen=True, slots=True)
class Cursor:
    """How far a reader has come: bytes passed, and the number of the last frame passed."""

    position: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class Batch:
    """What one reading brought: payloads in order, where to go on, frames lost and damaged."""

    payloads: list[bytes]
    cursor: Cursor
    lost: int = 0
    corrupt: int = 0
    sequences: Sequence[int] = ()
    """The number of each payload's frame."""


class RingWriter:
    """Makes a ring and writes to it. Not for several threads at once: the caller sees to that.

    `step`, `beat` and `time` are of the last step taken, and are published with every frame.
    Touching it in a forked child ends the child, since the mapping stays with the parent.
    """

    def __init__(self, path: Path, identity: Identity, capacity: int = CAPACITY) -> None:
        """Raises FileExistsError if that ring is there, OSError if there is no room for it."""
        self.path = path
        self.capacity = capacity & ~7
        self.largest = self.capacity // 8
        """Bytes a payload may have."""
        page = first_page(identity, Process.me(), self.capacity, time.time())
        self._map = _make(path, page, self.capacity)
        self._words = memoryview(self._map)[:HEADER_SIZE].cast("Q")
        self.step = self.beat = 0
        self.time = time.time()
        self.spent = 0.0
        """Seconds our code cost the training thread; shown with the next frame."""
        self._position = self._sequence = 0

    def write(self, payload: bytes) -> None:
        """Append one frame, over the oldest ones; beyond `largest` bytes it is dropped."""
        size = len(payload)
        if size > self.largest:
            self.drop("too_large")
            return
        position = self._position
        at = position % self.capacity
        taken = (_HEAD + size + 7) & ~7
        if at + taken > self.capacity:
            if self.capacity - at >= _HEAD:
                FRAME.pack_into(self._map, HEADER_SIZE + at, 0, WRAP, 0)
            position += self.capacity - at
            at = 0
        sequence = self._sequence + 1
        start = HEADER_SIZE + at + _HEAD
        self._map[start : start + size] = payload
        crc = crc32(payload, sequence & 0xFFFFFFFF)
        FRAME.pack_into(self._map, start - _HEAD, crc, size, sequence)
        # Ours first: an interrupt between here and the publication must not reuse the number.
        self._sequence, self._position = sequence, position + taken
        # Copied as a whole: `pack_into` blanks its target first, and whoever is killed just then
        # leaves a ring that looks empty.
        self._map[_PROGRESS] = _progress(
            self.step, self.beat, self.time, self.spent, sequence, position + taken
        )

    def note(self, step: int, beat: int, now: float) -> None:
        """Show the step just taken, at once, whether or not a record follows."""
        self.step, self.beat, self.time = step, beat, now
        self._map[_PROGRESS] = _progress(
            step, beat, now, self.spent, self._sequence, self._position
        )

    def begin(self, beat: int) -> None:
        """Show that the step with this beat is under way."""
        self._words[WORD_BEGUN] = beat

    def drop(self, reason: str, count: int = 1) -> None:
        """Count values refused, or records lost, for one of `DROP_REASONS`."""
        self._words[WORD_DROPS + DROP_REASONS.index(reason)] += count

    def fail(self) -> None:
        """Count an error of ours that was swallowed."""
        self._words[WORD_ERRORS] += 1

    def abandon(self) -> None:
        """Let go in a forked child, to which the memory does not belong."""
        self._words.release()
        self._map.close()

    def close(self, outcome: str) -> None:
        """Say how it ended (one of `OUTCOMES`) and let go of the memory; the file stays."""
        self._words[WORD_OUTCOME] = OUTCOMES.index(outcome)
        self.note(self.step, self.beat, self.time)
        self.abandon()


def fitting(directory: Path, wanted: int = CAPACITY, sharers: int = 1) -> int:
    """Capacity that `directory` can hold `sharers` times in half of its free space, or 0."""
    space = os.statvfs(directory)
    free = space.f_bavail * space.f_frsize // (2 * max(1, sharers)) - HEADER_SIZE
    capacity = min(wanted, free) & ~(_PAGE - 1)
    return capacity if capacity >= SMALLEST else 0


def _make(path: Path, page: bytes, capacity: int) -> mmap.mmap:
    """A mapped ring file that appears under its name only when it is whole."""
    unborn = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(unborn, flags, 0o600)
    try:
        # Reserved for good: writing to a page that a full tmpfs cannot give is SIGBUS.
        os.posix_fallocate(descriptor, 0, HEADER_SIZE + capacity)
        mapped = mmap.mmap(descriptor, HEADER_SIZE + capacity)
        mapped.madvise(mmap.MADV_DONTFORK)
        for at in range(0, len(mapped), _PAGE):
            mapped[at] = 0
        mapped[:HEADER_SIZE] = page
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
    patience: float = 1.0
    _map: mmap.mmap = field(init=False, repr=False)
    _words: memoryview = field(init=False, repr=False)
    _capacity: int = field(init=False, repr=False)
    _doubt: tuple[int, float] = field(init=False, repr=False, default=(-1, 0.0))

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
        header = self.header()
        self._capacity = header.capacity
        self._words = memoryview(self._map)[:HEADER_SIZE].cast("Q")
        if size != HEADER_SIZE + header.capacity or header.capacity < 8:
            message = f"{self.path} is cut short: {size} of {HEADER_SIZE + header.capacity} bytes."
            raise RingError(message)

    def header(self) -> Header:
        """What the ring says now. Raises RingError."""
        try:
            return parse(self._map[:HEADER_SIZE])
        except ValueError as error:
            raise RingError(f"{self.path} {error}.") from error

    def read(self, cursor: Cursor, most: int = FAR) -> Batch:
        """Everything written after `cursor`; of more than `most` bytes, the first of them."""
        stop = cursor.position + most
        payloads: list[bytes] = []
        sequences: list[int] = []
        lost = corrupt = 0
        while cursor.position < min(stop, end := self._words[WORD_POSITION]):
            payload, after = self._frame(cursor.position, end)
            if after.sequence == cursor.sequence + 1:
                payloads.append(payload)
                sequences.append(after.sequence)
                cursor = after
                continue
            overrun = self._overrun(cursor.position)
            if not overrun and self._still_arriving(cursor.position):
                break
            found = self._next(cursor, overrun=overrun)
            if found is None:
                break
            missing = found.sequence - cursor.sequence
            lost, corrupt = lost + missing * overrun, corrupt + missing * (not overrun)
            cursor = found
        return Batch(payloads, cursor, lost, corrupt, sequences)

    def close(self) -> None:
        """Let go of the memory."""
        self._words.release()
        self._map.close()

    def _frame(self, position: int, end: int) -> tuple[bytes, Cursor]:
        """The frame at `position` and the cursor behind it; sequence 0 where there is no whole one.

        The payload is copied before it is checked, so a writer that comes by cannot spoil it after.
        """
        at = position % self._capacity
        crc, size, sequence = self._head(at)
        if size == WRAP:
            position, at = position + self._capacity - at, 0
            crc, size, sequence = self._head(at)
        start = HEADER_SIZE + at + _HEAD
        if position >= end or size > min(end - position, self._capacity - at) - _HEAD:
            return b"", Cursor()
        payload = self._map[start : start + size]
        if crc32(payload, sequence & 0xFFFFFFFF) != crc:
            return b"", Cursor()
        return payload, Cursor(position + ((_HEAD + size + 7) & ~7), sequence)

    def _head(self, at: int) -> tuple[int, int, int]:
        if self._capacity - at < _HEAD:
            return 0, WRAP, 0
        crc, size, sequence = FRAME.unpack_from(self._map, HEADER_SIZE + at)
        return crc, size, sequence

    def _overrun(self, position: int) -> bool:
        """Whether the writer may be at, or beyond, that place again: it writes, then publishes."""
        reach = self._words[WORD_POSITION] + self._capacity // 8 + 2 * _HEAD
        return position + self._capacity < reach

    def _still_arriving(self, position: int) -> bool:
        """Whether a frame that looks wrong may yet come right: stores can be seen out of order."""
        now = time.monotonic()
        if self._doubt[0] != position:
            self._doubt = (position, now)
        return now - self._doubt[1] < self.patience

    def _next(self, cursor: Cursor, *, overrun: bool) -> Cursor | None:
        """Just before the next whole frame after `cursor`, if there is one yet."""
        end, last = self._words[WORD_POSITION], self._words[WORD_SEQUENCE]
        start = cursor.position + 8
        if overrun:
            # A margin ahead of the writer, or the oldest frame would be gone before it is read.
            start = max(start, end - self._capacity + self._capacity // 4 & ~7)
        for position in range(start, end, 8):
            sequence = self._frame(position, end)[1].sequence
            if cursor.sequence < sequence <= last:
                return Cursor(position, sequence - 1)
        return None
