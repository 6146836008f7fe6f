"""Sheet: what several ranks say of one step in the same words, as a table.

With many ranks that is what nearly all records are. Handled one by one, each number of each rank
would be looked at again in every room that it passes.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

from sentinel.model.record import WHOLE_RUN, Event, Record

Row = tuple[float, ...]


@dataclass(frozen=True, slots=True)
class RecordBatch:
    """STEP records without facts of two ranks or more, all of one attempt, step and beat.

    Each rank has its place in `ranks`, which are distinct, in `times`, in `sequences`, and in
    `rows`, which hold a value for each of `names`. All else is as in `Record`.
    """

    run: str
    attempt: int
    step: int
    step_index: int
    names: tuple[str, ...]
    ranks: tuple[int, ...]
    times: tuple[float, ...]
    sequences: tuple[int, ...]
    rows: tuple[Row, ...]

    def records(self) -> Iterator[Record]:
        """The record of each rank, in their order."""
        every = zip(self.ranks, self.times, self.sequences, self.rows, strict=True)
        for rank, time, sequence, row in every:
            yield Record(
                run=self.run,
                rank=rank,
                step=self.step,
                time=time,
                values=dict(zip(self.names, row, strict=True)),
                attempt=self.attempt,
                step_index=self.step_index,
                sequence=sequence,
            )


RecordOrBatch = Record | RecordBatch


def is_batchable(record: Record) -> bool:
    """Whether that may be a row of a sheet."""
    told = record.attributes or record.spread
    return record.event is Event.STEP and record.rank != WHOLE_RUN and not told


def iter_records(entries: Iterable[RecordOrBatch]) -> Iterator[Record]:
    """The same, each rank's alone."""
    for entry in entries:
        if isinstance(entry, RecordBatch):
            yield from entry.records()
        else:
            yield entry


def entry_ranks(entry: RecordOrBatch) -> tuple[int, ...]:
    """The ranks that speak in it."""
    return entry.ranks if isinstance(entry, RecordBatch) else (entry.rank,)


def make_batch(records: Sequence[Record]) -> RecordBatch:
    """The sheet of these, of which each may be a row of the same."""
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
        rows=tuple([tuple(each.values.values()) for each in records]),
    )


def coalesce(entries: Iterable[RecordOrBatch]) -> list[RecordOrBatch]:
    """The same records in as few entries as may be, those of each rank in their order."""
    found: list[RecordOrBatch | _BatchBuilder] = []
    drafts: dict[object, _BatchBuilder] = {}
    last: dict[int, int] = {}
    for entry in entries:
        at, ranks = len(found), entry_ranks(entry)
        if isinstance(entry, Record) and not is_batchable(entry):
            found.append(entry)
        else:
            names = entry.names if isinstance(entry, RecordBatch) else tuple(entry.values)
            key = entry.attempt, entry.step, entry.step_index, names
            draft = drafts.get(key)
            # Who said something else since then would be heard in another order.
            if draft is None or any(last.get(rank, -1) >= draft.position for rank in ranks):
                draft = drafts[key] = _BatchBuilder(at)
                found.append(draft)
            draft.parts.append(entry)
            at = draft.position
        last.update(dict.fromkeys(ranks, at))
    return [each.build() if isinstance(each, _BatchBuilder) else each for each in found]


@dataclass(slots=True)
class _BatchBuilder:
    """A sheet that is being written, for the place `at` among its like."""

    position: int
    parts: list[RecordOrBatch] = field(default_factory=list)

    def build(self) -> RecordOrBatch:
        """What it became: of one part, this."""
        if len(self.parts) == 1:
            return self.parts[0]
        sheets = [each for each in self.parts if isinstance(each, RecordBatch)]
        loose = [each for each in self.parts if isinstance(each, Record)]
        if loose:
            sheets.append(make_batch(loose))
        columns = zip(*[(s.ranks, s.times, s.sequences, s.rows) for s in sheets], strict=True)
        ranks, times, sequences, rows = (tuple(chain.from_iterable(each)) for each in columns)
        return replace(sheets[0], ranks=ranks, times=times, sequences=sequences, rows=rows)
