"""Ring buffer of one rank's records in shared memory: one writer, one reader, no waiting.

The writer overwrites the oldest frames; sequence numbers show a slow reader exactly how many frames
it lost. A frame is accepted only if its checksum and its number are right, so neither a writer that
is killed at any instruction nor a machine that reorders stores can produce a false record.
"""

from __future__ import annotations

import mmap
import os
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from struct import Struct
from typing import Any, NamedTuple
from zlib import crc32

from sentinel.transport.identity import Identity
from sentinel.transport.mapped_file import create_atomically
from sentinel.transport.process import Process
from sentinel.transport.ring_layout import (
    ACTIVITIES,
    DROP_REASONS,
    FRAME_HEADER,
    HEADER_SIZE,
    OUTCOMES,
    PROGRESS_OFFSET,
    PROGRESS_STRUCT,
    STATE_SLICE,
    WORD_ACTIVITY,
    WORD_ACTIVITY_COUNT,
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
    update_header,
)

__all__ = [
    "DROP_REASONS",
    "ReadPosition",
    "RingCursor",
    "RingError",
    "RingHeader",
    "RingReadResult",
    "RingReader",
    "RingWriter",
]

DEFAULT_CAPACITY_BYTES = 4 << 20
"""Default space for frames: about 20,000 records of twenty values."""
MIN_CAPACITY_BYTES = 64 << 10
"""Least space for frames; a smaller ring would be overrun all the time."""
NO_LIMIT = 1 << 62
_PAGE_SIZE = 4096
_MIN_OVERRUN_MARGIN_BYTES = 4096
"""How far ahead of the writer an overrun reader continues; more if it is overrun again."""
_FRAME_HEADER_SIZE = FRAME_HEADER.size
_MAX_FRAME_PACKERS = 64
_PROGRESS_SLICE = slice(PROGRESS_OFFSET, PROGRESS_OFFSET + PROGRESS_STRUCT.size)
_pack_progress = PROGRESS_STRUCT.pack


class RingError(ValueError):
    """A file that cannot be read as a ring."""


class RingCursor(NamedTuple):
    """A reader's position: bytes passed, and sequence number of the last frame passed."""

    position: int = 0
    sequence: int = 0


@dataclass(frozen=True, slots=True)
class ReadPosition:
    """Stored state of reading a ring or a log, from which another agent continues.

    `reader_state` is what decoding needs: for a ring its name sets by number, for a log its
    `max_steps`. `outcome` is "" while a rank runs; `ended_at` is in seconds since the epoch.
    `end_attributes` are what is known of the end.
    """

    cursor: RingCursor
    reader_state: Mapping[str, Any] = field(default_factory=dict)
    outcome: str = ""
    ended_at: float = 0.0
    end_attributes: Mapping[str, str] = field(default_factory=dict)


class RingReadResult(NamedTuple):
    """Payloads in order, the cursor after them, and the numbers of lost and damaged frames."""

    payloads: list[bytes]
    cursor: RingCursor
    lost_frames: int = 0
    corrupt_frames: int = 0
    sequences: Sequence[int] = ()
    """Sequence number of each payload's frame."""
    is_complete: bool = True
    """Whether no further frame can be read now; False at a limit or at a frame still awaited."""


class RingWriter:
    """Creates a ring and writes to it. Not thread-safe: the caller serializes the calls.

    `step`, `step_index` and `time` are of the newest step and are published with every frame.
    The mapping is not inherited: an access in a forked child kills the child.
    """

    def __init__(
        self, path: Path, identity: Identity, capacity: int = DEFAULT_CAPACITY_BYTES
    ) -> None:
        """Raises FileExistsError if the ring exists, OSError if there is no space for it."""
        self.path = path
        self.capacity = capacity & ~7
        self.max_payload_bytes = self.capacity // 8
        """Largest payload that is written, in bytes."""
        page = pack_header(identity, Process.current(), self.capacity, time.time())
        self._map = create_atomically(path, HEADER_SIZE + self.capacity, page)
        # Touches every page now, so that no write takes a page fault.
        for offset in range(HEADER_SIZE, len(self._map), _PAGE_SIZE):
            self._map[offset] = 0
        self.words = memoryview(self._map)[:HEADER_SIZE].cast("Q")
        """The header as numbers; see `ring_layout`."""
        self.step = self.step_index = 0
        self.time = time.time()
        self.overhead_seconds = 0.0
        """Time the client has cost the training thread; published with the next frame."""
        self._position = self._sequence = 0
        self._offset, self._end = HEADER_SIZE, HEADER_SIZE + self.capacity
        """Where the next frame starts in the file, and where the frames end."""
        self._frame_packers: dict[int, tuple[Callable[..., None], int]] = {}
        """How a frame is packed, and its size, by the size of the payload."""

    def write(self, payload: bytes) -> None:
        """Append one frame, over the oldest; one above `max_payload_bytes` is dropped."""
        size = len(payload)
        try:
            pack_frame, frame_size = self._frame_packers[size]
        except KeyError:
            if size > self.max_payload_bytes:
                self.count_drop("too_large")
                return
            pack_frame, frame_size = self._add_frame_packer(size)
        position, offset, sequence = self._position, self._offset, self._sequence + 1
        after = offset + frame_size
        if after > self._end:
            if self._end - offset >= _FRAME_HEADER_SIZE:
                FRAME_HEADER.pack_into(self._map, offset, 0, WRAP_MARKER, 0)
            position += self._end - offset
            offset, after = HEADER_SIZE, HEADER_SIZE + frame_size
        # Of the seed, `crc32` takes the lower 32 bits.
        pack_frame(self._map, offset, crc32(payload, sequence), size, sequence, payload)
        # Before the publication: an interrupt between the two must not reuse the number.
        self._sequence, self._position, self._offset = sequence, position + frame_size, after
        # Assigned as a slice: `pack_into` zeroes its target first, so a writer killed at that
        # instant would leave a ring that looks empty.
        self._map[_PROGRESS_SLICE] = _pack_progress(
            self.step, self.step_index, self.time, self.overhead_seconds, sequence, self._position
        )

    def _add_frame_packer(self, size: int) -> tuple[Callable[..., None], int]:
        """The packer of frames with payloads of that size, and their size."""
        if len(self._frame_packers) >= _MAX_FRAME_PACKERS:
            self._frame_packers.clear()
        frame = Struct(f"{FRAME_HEADER.format}{size}s")
        packer = self._frame_packers[size] = frame.pack_into, (frame.size + 7) & ~7
        return packer

    def publish_step(self, step: int, step_index: int, now: float) -> None:
        """Publish the newest step at once, whether or not a record follows."""
        self.step, self.step_index, self.time = step, step_index, now
        self._map[_PROGRESS_SLICE] = _pack_progress(
            step, step_index, now, self.overhead_seconds, self._sequence, self._position
        )

    def begin_backward(self, step_index: int) -> None:
        """Publish the step index whose backward pass has started."""
        self.words[WORD_BACKWARD_STEP_INDEX] = step_index

    def count_activity(self) -> None:
        """Count a sign of life outside a step, such as a fetched batch."""
        self.words[WORD_ACTIVITY_COUNT] += 1

    def set_activity(self, activity: str) -> None:
        """Publish what the rank does outside steps: one of `ACTIVITIES`; a sign of life itself."""
        self.words[WORD_ACTIVITY] = ACTIVITIES.index(activity)
        self.words[WORD_ACTIVITY_COUNT] += 1

    def count_drop(self, reason: str, count: int = 1) -> None:
        """Count dropped values or records under one of `DROP_REASONS`."""
        self.words[WORD_DROPS + DROP_REASONS.index(reason)] += count

    def set_drops(self, reason: str, total: int) -> None:
        """Publish how many values or records were dropped so far under one of `DROP_REASONS`."""
        self.words[WORD_DROPS + DROP_REASONS.index(reason)] = total

    def count_error(self) -> None:
        """Count a client error that was suppressed."""
        self.words[WORD_ERRORS] += 1

    def abandon(self) -> None:
        """Release the mapping in a forked child, which does not own the memory."""
        self.words.release()
        self._map.close()

    def close(self, outcome: str) -> None:
        """Publish the outcome (one of `OUTCOMES`) and release the mapping; the file stays."""
        self.words[WORD_OUTCOME] = OUTCOMES.index(outcome)
        self.publish_step(self.step, self.step_index, self.time)
        self.abandon()


def fitting_capacity(
    directory: Path, max_capacity: int = DEFAULT_CAPACITY_BYTES, ring_count: int = 1
) -> int:
    """Capacity at which `ring_count` rings fit half of the directory's free space, or 0."""
    space = os.statvfs(directory)
    free = space.f_bavail * space.f_frsize // (2 * max(1, ring_count)) - HEADER_SIZE
    capacity = min(max_capacity, free) & ~(_PAGE_SIZE - 1)
    return capacity if capacity >= MIN_CAPACITY_BYTES else 0


@dataclass
class RingReader:
    """Reads a ring, of a live or a dead writer. The caller holds the cursor.

    `grace_seconds` is how long a published frame may look wrong before it counts as damaged rather
    than as not yet visible.
    """

    path: Path
    grace_seconds: float = 1.0
    _map: mmap.mmap = field(init=False, repr=False)
    _words: memoryview = field(init=False, repr=False)
    _capacity: int = field(init=False, repr=False)
    _header: RingHeader = field(init=False, repr=False)
    _state: bytes = field(init=False, repr=False)
    """The bytes from which `_header` was built."""
    _suspect_frame: tuple[int, float] = field(init=False, repr=False, default=(-1, 0.0))
    _overrun_margin: int = field(init=False, repr=False, default=_MIN_OVERRUN_MARGIN_BYTES)

    def __post_init__(self) -> None:
        """Raises RingError with the path, FileNotFoundError."""
        descriptor = os.open(self.path, os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
        try:
            size = os.fstat(descriptor).st_size
            if size < HEADER_SIZE:
                raise RingError(f"{self.path} is truncated: {size} bytes.")
            self._map = mmap.mmap(descriptor, size, prot=mmap.PROT_READ)
        finally:
            os.close(descriptor)
        self._state = self._map[STATE_SLICE]
        try:
            self._header = header = parse_header(self._map[:HEADER_SIZE])
        except ValueError as error:
            raise RingError(f"{self.path} {error}.") from error
        self._capacity = header.capacity
        self._words = memoryview(self._map)[:HEADER_SIZE].cast("Q")
        if size != HEADER_SIZE + header.capacity or header.capacity < 8:
            message = f"{self.path} is truncated: {size} of {HEADER_SIZE + header.capacity} bytes."
            raise RingError(message)

    def read_header(self) -> RingHeader:
        """The current header: the last one, if nothing changed."""
        state = self._map[STATE_SLICE]
        if state != self._state:
            self._state, self._header = state, update_header(self._header, state)
        return self._header

    def read(
        self, cursor: RingCursor, max_bytes: int = NO_LIMIT, max_frames: int = NO_LIMIT
    ) -> RingReadResult:
        """Frames after `cursor`, up to about `max_bytes` and at most `max_frames` of them."""
        position, last = cursor.position, cursor.sequence
        stop = position + max_bytes
        payloads: list[bytes] = []
        sequences: list[int] = []
        lost = corrupt = 0
        is_complete = False
        while position < stop and len(payloads) < max_frames:
            end = self._words[WORD_POSITION]
            if position >= end:
                is_complete = True
                break
            payload, after, sequence = self._read_frame(position, end)
            if sequence == last + 1:
                payloads.append(payload)
                sequences.append(sequence)
                position, last = after, sequence
                continue
            overrun = self._is_overrun(position)
            if not overrun and self._may_still_arrive(position):
                break
            resumed = self._find_next_frame(position, last, is_overrun=overrun)
            if resumed is None:
                is_complete = True
                break
            missing = resumed.sequence - last
            lost, corrupt = lost + missing * overrun, corrupt + missing * (not overrun)
            position, last = resumed.position, resumed.sequence
        if is_complete and not lost:
            self._overrun_margin = _MIN_OVERRUN_MARGIN_BYTES
        cursor = RingCursor(position, last) if payloads or lost or corrupt else cursor
        return RingReadResult(payloads, cursor, lost, corrupt, sequences, is_complete)

    def close(self) -> None:
        """Release the mapping."""
        self._words.release()
        self._map.close()

    def _read_frame(self, position: int, end: int) -> tuple[bytes, int, int]:
        """The frame at `position`, the position after it, and its number; 0 for no valid frame.

        The payload is copied before the check, so that a concurrent write cannot change it
        afterwards.
        """
        offset = position % self._capacity
        crc, size, sequence = self._read_frame_header(offset)
        if size == WRAP_MARKER:
            position, offset = position + self._capacity - offset, 0
            crc, size, sequence = self._read_frame_header(offset)
        start = HEADER_SIZE + offset + _FRAME_HEADER_SIZE
        space = min(end - position, self._capacity - offset)
        if position >= end or size > space - _FRAME_HEADER_SIZE:
            return b"", 0, 0
        payload = self._map[start : start + size]
        if crc32(payload, sequence & 0xFFFFFFFF) != crc:
            return b"", 0, 0
        return payload, position + ((_FRAME_HEADER_SIZE + size + 7) & ~7), sequence

    def _read_frame_header(self, offset: int) -> tuple[int, int, int]:
        if self._capacity - offset < _FRAME_HEADER_SIZE:
            return 0, WRAP_MARKER, 0
        crc, size, sequence = FRAME_HEADER.unpack_from(self._map, HEADER_SIZE + offset)
        return crc, size, sequence

    def _is_overrun(self, position: int) -> bool:
        """Whether the writer may have overwritten that position: it publishes after it writes."""
        write_limit = self._words[WORD_POSITION] + self._capacity // 8 + 2 * _FRAME_HEADER_SIZE
        return position + self._capacity < write_limit

    def _may_still_arrive(self, position: int) -> bool:
        """Whether an invalid frame may still become valid: stores can become visible late."""
        now = time.monotonic()
        if self._suspect_frame[0] != position:
            self._suspect_frame = (position, now)
        return now - self._suspect_frame[1] < self.grace_seconds

    def _find_next_frame(
        self, position: int, sequence: int, *, is_overrun: bool
    ) -> RingCursor | None:
        """Cursor before the next valid frame with a payload after that one, or None.

        Two equal numbers side by side in a record look like a frame without a payload:
        `crc32(b"", n) == n`.
        """
        end, last = self._words[WORD_POSITION], self._words[WORD_SEQUENCE]
        start = position + 8
        if is_overrun:
            # Starts a margin ahead of the writer, which overwrites the oldest frames meanwhile.
            start = max(start, end - self._capacity + self._overrun_margin & ~7)
            self._overrun_margin = min(2 * self._overrun_margin, self._capacity // 4)
        for candidate in range(start, end, 8):
            payload, _, found = self._read_frame(candidate, end)
            if payload and sequence < found <= last:
                return RingCursor(candidate, found - 1)
        return None


def read_header(path: Path) -> RingHeader | None:
    """The header of a ring; None if the file is not a complete ring."""
    try:
        reader = RingReader(path)
    except (RingError, OSError):
        return None
    try:
        return reader.read_header()
    finally:
        reader.close()
