"""Row page: a file beside a rank's ring with the rows of its last steps.

Rows are indices of the data set. The rank writes them at each step, and the node's agent reads them
when an incident opens, also if the process of the rank is gone.

    bytes 0..31      magic, layout version, slots, rows in a slot
    bytes 32..39     why batches have no rows: an index in `ROW_GAPS`
    bytes 64..       the slots; a step is in the slot of its step index modulo their number

A slot is eight numbers (step index, published last; step; rows drawn; rows stored; their checksum;
losses stored; their checksum; 0), the rows as int64 and their losses as float32. A small batch has
small slots, of which there are more. A slot that is partly written has a wrong checksum and is
ignored.
"""

from __future__ import annotations

import mmap
import os
import struct
from array import array
from collections.abc import Iterable
from pathlib import Path
from typing import NamedTuple
from zlib import crc32

from sentinel.transport.mapped_file import create_atomically

MAX_ROWS = 1024
"""Rows of a step that are stored."""
MIN_STEPS = 32
"""Steps in the page, of batches of any size."""
MIN_SLOT_ROWS, SPARE_FACTOR = 32, 4
"""Least rows in a slot, and by how much a batch may be larger than the first one."""
ROW_GAPS = (
    "",
    "the data set is iterable and has no indices",
    "the sampler yields no integers",
    "the batches are fetched by another thread than that of the training",
)
"""Why batches have no rows, as the end of a sentence."""
UNKNOWN_LOSS = float("-inf")
"""The loss of a row that was not measured."""

_MAGIC, _VERSION = b"SNTLROWS", 1
_HEADER = struct.Struct("@8sQQQ")
_GAP_WORD, _FIRST_SLOT = 4, 64
_SLOT_HEADER, _AFTER_INDEX = struct.Struct("@8q"), struct.Struct("@4q24x")
_LOSS_WORD = 5
"""Word of a slot with the number of losses, before their checksum."""
_ROW_BYTES = 12
_SUFFIX = ".rows"


class StepRows(NamedTuple):
    """The first rows of a step, of which `drawn` were drawn; `losses` are of the rows, or empty."""

    step: int
    drawn: int
    rows: tuple[int, ...]
    losses: tuple[float, ...] = ()


class RowPage:
    """The page of one rank, which writes it.

    The mapping is not inherited: an access in a forked child kills the child.
    """

    def __init__(self, path: Path, rows: int) -> None:
        """For batches of about so many rows. Raises OSError, FileExistsError."""
        wanted = max(MIN_SLOT_ROWS, SPARE_FACTOR * rows)
        self.slot_rows = min(MAX_ROWS, 1 << (wanted - 1).bit_length())
        self._slots = MIN_STEPS * MAX_ROWS // self.slot_rows
        self._slot_bytes = _slot_bytes(self.slot_rows)
        header = _HEADER.pack(_MAGIC, _VERSION, self._slots, self.slot_rows)
        size = _FIRST_SLOT + self._slots * self._slot_bytes
        self._map = create_atomically(path, size, header)
        self._words = memoryview(self._map).cast("q")

    def set_gap(self, number: int) -> None:
        """Publish why batches have no rows, as an index in `ROW_GAPS`."""
        self._words[_GAP_WORD] = number

    def write(self, step_index: int, step: int, rows: bytes, drawn: int) -> None:
        """Write the rows of a step, as int64, in place of those of the oldest step."""
        offset = self._offset(step_index)
        rows = rows[: 8 * self.slot_rows]
        start = offset + _SLOT_HEADER.size
        self._words[offset // 8] = 0
        header = _AFTER_INDEX.pack(step, drawn, len(rows) // 8, crc32(rows, step_index))
        self._map[offset + 8 : start + len(rows)] = header + rows
        self._words[offset // 8] = step_index

    def write_losses(self, step_index: int, losses: array[float]) -> None:
        """Add the losses of the rows of a step (float32), if the page still has it."""
        offset = self._offset(step_index)
        if self._words[offset // 8] != step_index:
            return
        content = losses[: self.slot_rows].tobytes()
        start = offset + _SLOT_HEADER.size + 8 * self.slot_rows
        self._map[start : start + len(content)] = content
        word = offset // 8 + _LOSS_WORD
        self._words[word + 1] = crc32(content, step_index & 0xFFFFFFFF)
        self._words[word] = len(content) // 4

    def close(self) -> None:
        """Release the mapping; the file stays."""
        self._words.release()
        self._map.close()

    def _offset(self, step_index: int) -> int:
        return _FIRST_SLOT + step_index % self._slots * self._slot_bytes


def row_page_path(ring: Path) -> Path:
    """Path of the page of a ring's rank."""
    return ring.with_suffix(_SUFFIX)


def read_row_page(
    ring: Path, indices: Iterable[int] | None = None
) -> tuple[dict[int, StepRows], str]:
    """The rows of the steps of a ring's rank, by step index, and why later batches have none.

    Of the steps of `indices`, or of all. Both are empty if the rank has no page, or one that cannot
    be read.
    """
    try:
        descriptor = os.open(row_page_path(ring), os.O_RDONLY | os.O_NOFOLLOW | os.O_CLOEXEC)
    except OSError:
        return {}, ""
    try:
        # A copy, so that a concurrent write cannot change what was checked.
        with mmap.mmap(descriptor, 0, prot=mmap.PROT_READ) as mapped:
            content = mapped[:]
        magic, version, slots, slot_rows = _HEADER.unpack_from(content)
    except (OSError, ValueError, LookupError, struct.error):
        return {}, ""
    finally:
        os.close(descriptor)
    size = _FIRST_SLOT + slots * _slot_bytes(slot_rows)
    if (magic, version) != (_MAGIC, _VERSION) or len(content) != size or not slots:
        return {}, ""
    found = {}
    for slot in range(slots) if indices is None else {index % slots for index in indices}:
        offset = _FIRST_SLOT + slot * _slot_bytes(slot_rows)
        (index, *_) = _SLOT_HEADER.unpack_from(content, offset)
        step = _read_slot(content, offset, slot_rows) if index else None
        if step is not None:
            found[index] = step
    gap = content[8 * _GAP_WORD]
    return found, ROW_GAPS[gap] if gap < len(ROW_GAPS) else ""


def _read_slot(content: bytes, offset: int, slot_rows: int) -> StepRows | None:
    """The step in a slot; None if it is being written."""
    index, step, drawn, stored, check, measured, loss_check, _ = _SLOT_HEADER.unpack_from(
        content, offset
    )
    start = offset + _SLOT_HEADER.size
    rows = content[start : start + 8 * min(stored, slot_rows)]
    if crc32(rows, index & 0xFFFFFFFF) != check:
        return None
    start += 8 * slot_rows
    losses = content[start : start + 4 * min(measured, slot_rows)]
    if crc32(losses, index & 0xFFFFFFFF) != loss_check or measured != stored:
        losses = b""
    return StepRows(step, drawn, tuple(array("q", rows)), tuple(array("f", losses)))


def _slot_bytes(slot_rows: int) -> int:
    return _SLOT_HEADER.size + _ROW_BYTES * slot_rows
