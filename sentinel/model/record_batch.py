"""Record batches: the records of several ranks for one step and one set of names.

With many ranks nearly all records are of this form, and are processed together, not one by one. The
values are a matrix in bytes, from the message of a node to the columns that are combined: a row for
each rank, of a float64 for each name, in little-endian order.
"""

from __future__ import annotations

import struct
import sys
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from sentinel.model.record import WHOLE_RUN, Event, Record

FLOAT64_BYTES = 8


def pack_row(values: Sequence[float]) -> bytes:
    """A row of a matrix."""
    return struct.pack(f"<{len(values)}d", *values)


def unpack_row(row: bytes) -> tuple[float, ...]:
    """The values that `pack_row` packed."""
    return struct.unpack(f"<{len(row) // FLOAT64_BYTES}d", row)


def unpack_matrix(matrix: bytes) -> array[float]:
    """The values of rows that follow each other."""
    values = array("d", matrix)
    if sys.byteorder == "big":
        values.byteswap()
    return values


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """STEP records without attributes of at least two ranks, of one attempt, step and step index.

    `ranks` are distinct. `times` and `sequences` have one element per rank, and `matrix` has a row,
    with a value for each of `names`. Other fields are those of `Record`.
    """

    run: str
    attempt: int
    step: int
    step_index: int
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    times: tuple[float, ...]
    sequences: tuple[int, ...]
    matrix: bytes

    @property
    def rows(self) -> list[bytes]:
        """The row of each rank, see `pack_row`."""
        size = FLOAT64_BYTES * len(self.names)
        return [self.matrix[at * size : (at + 1) * size] for at in range(len(self.ranks))]

    def records(self) -> Iterator[Record]:
        """The record of each rank, in the order of `ranks`."""
        columns = zip(self.ranks, self.times, self.sequences, self.rows, strict=True)
        for rank, time, sequence, row in columns:
            yield Record(
                run=self.run,
                rank=rank,
                step=self.step,
                time=time,
                values=dict(zip(self.names, unpack_row(row), strict=True)),
                attempt=self.attempt,
                step_index=self.step_index,
                sequence=sequence,
            )


RecordOrBatch = Record | RecordBatch


def is_batchable(record: Record) -> bool:
    """Whether the record can be a row of a batch."""
    has_more = record.attributes or record.spread
    return record.event is Event.STEP and record.rank != WHOLE_RUN and not has_more


def iter_records(entries: Iterable[RecordOrBatch]) -> Iterator[Record]:
    """The records, with batches split into those of each rank."""
    for entry in entries:
        if isinstance(entry, RecordBatch):
            yield from entry.records()
        else:
            yield entry


def entry_ranks(entry: RecordOrBatch) -> tuple[int, ...]:
    """The ranks of a record or batch."""
    return entry.ranks if isinstance(entry, RecordBatch) else (entry.rank,)


def make_batch(records: Sequence[Record]) -> RecordBatch:
    """The batch of these records, which must be of one attempt, step, step index and key set."""
    first = records[0]
    return RecordBatch(
        run=first.run,
        attempt=first.attempt,
        step=first.step,
        step_index=first.step_index,
        names=tuple(first.values),
        ranks=tuple([each.rank for each in records]),
        times=tuple([each.time for each in records]),
        sequences=tuple([each.sequence for each in records]),
        matrix=b"".join([pack_row(tuple(each.values.values())) for each in records]),
    )


def coalesce(entries: Iterable[RecordOrBatch]) -> list[RecordOrBatch]:
    """Merge records into batches; the order of the records of each rank is kept."""
    merged: list[RecordOrBatch | _BatchBuilder] = []
    builders: dict[object, _BatchBuilder] = {}
    last: dict[int, int] = {}
    for entry in entries:
        position, ranks = len(merged), entry_ranks(entry)
        if isinstance(entry, Record) and not is_batchable(entry):
            merged.append(entry)
        else:
            names = entry.names if isinstance(entry, RecordBatch) else tuple(entry.values)
            key = entry.attempt, entry.step, entry.step_index, names
            builder = builders.get(key)
            # A rank with a later record must not have its order changed.
            if builder is None or builder.position <= max([last.get(rank, -1) for rank in ranks]):
                builder = builders[key] = _BatchBuilder(position)
                merged.append(builder)
            builder.parts.append(entry)
            position = builder.position
        for rank in ranks:
            last[rank] = position
    return [each.build() if isinstance(each, _BatchBuilder) else each for each in merged]


@dataclass(slots=True)
class _BatchBuilder:
    """Collects the parts of the batch at `position` of the merged list."""

    position: int
    parts: list[RecordOrBatch] = field(default_factory=list)

    def build(self) -> RecordOrBatch:
        """The batch; a single part is returned as it is."""
        if len(self.parts) == 1:
            return self.parts[0]
        batches = [each for each in self.parts if isinstance(each, RecordBatch)]
        records = [each for each in self.parts if isinstance(each, Record)]
        if records:
            batches.append(make_batch(records))
        columns = zip(*[(b.ranks, b.times, b.sequences) for b in batches], strict=True)
        ranks, times, sequences = (tuple(chain.from_iterable(each)) for each in columns)
        matrix = b"".join([each.matrix for each in batches])
        return replace(batches[0], ranks=ranks, times=times, sequences=sequences, matrix=matrix)
