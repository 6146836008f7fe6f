"""Blocks of the history: what remains of many records when their part of the run is thinned."""

from __future__ import annotations

import struct
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import fsum, isfinite, nan

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.store.record_rows import RowLayout

_NUMBERS_PER_SIGNAL = 4
"""Mean, minimum, maximum and last."""


@dataclass(frozen=True, slots=True)
class SignalSummary:
    """One signal over the records of a block.

    `mean`, `min` and `max` are over the `count` finite values, and NaN if there is none; `last` is
    the newest value.
    """

    count: int
    mean: float
    min: float
    max: float
    last: float


@dataclass(frozen=True, slots=True)
class Block:
    """`count` records of one event and attempt, the oldest of which had the row `first_id`.

    `step` and `time` are those of the newest record.
    """

    attempt: int
    event: Event
    count: int
    first_id: int
    first_step: int
    step: int
    first_time: float
    time: float
    signals: Mapping[str, SignalSummary]

    def to_record(self, run: str) -> Record:
        """A record with the mean of each signal."""
        return Record(
            run=run,
            rank=WHOLE_RUN,
            step=self.step,
            time=self.time,
            event=self.event,
            values={name: each.mean for name, each in self.signals.items()},
            attempt=self.attempt,
        )


def block_of_record(row_id: int, record: Record) -> Block:
    """The block of one record, to be merged with others."""
    return Block(
        attempt=record.attempt,
        event=record.event,
        count=1,
        first_id=row_id,
        first_step=record.step,
        step=record.step,
        first_time=record.time,
        time=record.time,
        signals={name: _summary_of_value(value) for name, value in record.values.items()},
    )


def merge_blocks(blocks: Sequence[Block]) -> Block:
    """The block of all records in `blocks`, which are of one event and attempt, oldest first."""
    first, last = blocks[0], blocks[-1]
    summaries: dict[str, list[SignalSummary]] = {}
    for block in blocks:
        for name, summary in block.signals.items():
            summaries.setdefault(name, []).append(summary)
    return Block(
        attempt=last.attempt,
        event=last.event,
        count=sum(block.count for block in blocks),
        first_id=first.first_id,
        first_step=first.first_step,
        step=last.step,
        first_time=first.first_time,
        time=last.time,
        signals={name: _merge_summaries(each) for name, each in summaries.items()},
    )


def pack_block(block: Block) -> tuple[RowLayout, bytes]:
    """The layout with the names, and the numbers."""
    counts = [summary.count for summary in block.signals.values()]
    numbers = [
        number
        for each in block.signals.values()
        for number in (each.mean, each.min, each.max, each.last)
    ]
    return RowLayout(tuple(block.signals)), struct.pack(_format(len(counts)), *counts, *numbers)


def unpack_signals(layout: RowLayout, blob: bytes) -> dict[str, SignalSummary]:
    """The signals of the block that `pack_block` packed. Raises ValueError for another blob."""
    names = layout.names
    try:
        numbers = struct.unpack(_format(len(names)), blob)
    except struct.error as error:
        raise ValueError(f"a block of the history does not fit its layout: {error}") from error
    return {
        name: SignalSummary(numbers[at], *numbers[first : first + _NUMBERS_PER_SIGNAL])
        for at, name in enumerate(names)
        for first in (len(names) + at * _NUMBERS_PER_SIGNAL,)
    }


def _format(names: int) -> str:
    return f"<{names}Q{names * _NUMBERS_PER_SIGNAL}d"


def _summary_of_value(value: float) -> SignalSummary:
    if isfinite(value):
        return SignalSummary(1, value, value, value, value)
    return SignalSummary(0, nan, nan, nan, value)


def _merge_summaries(summaries: Iterable[SignalSummary]) -> SignalSummary:
    summaries = [*summaries]
    last = summaries[-1].last
    known = [each for each in summaries if each.count]
    count = sum(each.count for each in known)
    if not count:
        return SignalSummary(0, nan, nan, nan, last)
    minimum, maximum = min(each.min for each in known), max(each.max for each in known)
    try:
        mean = fsum(each.mean * each.count for each in known) / count
    except OverflowError:
        mean = fsum(each.mean * (each.count / count) for each in known)
    # Rounding must not take the mean out of the range.
    return SignalSummary(count, min(max(mean, minimum), maximum), minimum, maximum, last)
