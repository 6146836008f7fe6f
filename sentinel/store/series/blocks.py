"""Blocks of the history: what remains of many records when their part of the run is thinned."""

from __future__ import annotations

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite, nan
from typing import NamedTuple

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.store.record_rows import RowLayout
from sentinel.store.series.summary import EMPTY, Summary, merge_summaries, summarize

_NUMBERS_PER_SIGNAL = 4
"""Mean, minimum, maximum and last."""


class BlockSignal(NamedTuple):
    """One signal over the records of a block: its summary without ranks, and the newest value."""

    summary: Summary
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
    signals: Mapping[str, BlockSignal]

    def to_record(self, run: str) -> Record:
        """A record with the mean of each signal."""
        return Record(
            run=run,
            rank=WHOLE_RUN,
            step=self.step,
            time=self.time,
            event=self.event,
            values={
                name: each.mean if each.number else nan for name, (each, _) in self.signals.items()
            },
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
        signals={name: BlockSignal(summarize((v,)), v) for name, v in record.values.items()},
    )


def merge_blocks(blocks: Sequence[Block]) -> Block:
    """The block of all records in `blocks`, which are of one event and attempt, oldest first."""
    first, last = blocks[0], blocks[-1]
    parts: dict[str, list[BlockSignal]] = {}
    for block in blocks:
        for name, signal in block.signals.items():
            parts.setdefault(name, []).append(signal)
    return Block(
        attempt=last.attempt,
        event=last.event,
        count=sum(block.count for block in blocks),
        first_id=first.first_id,
        first_step=first.first_step,
        step=last.step,
        first_time=first.first_time,
        time=last.time,
        signals={
            name: BlockSignal(merge_summaries([part.summary for part in each]), each[-1].last)
            for name, each in parts.items()
        },
    )


def pack_block(block: Block) -> tuple[RowLayout, bytes]:
    """The layout with the names, and the numbers; NaN for those of no finite value."""
    counts = [each.number for each, _ in block.signals.values()]
    numbers = [
        number
        for each, last in block.signals.values()
        for number in (*(each[1:4] if each.number else (nan, nan, nan)), last)
    ]
    return RowLayout(tuple(block.signals)), struct.pack(_format(len(counts)), *counts, *numbers)


def unpack_signals(layout: RowLayout, blob: bytes) -> dict[str, BlockSignal]:
    """The signals of the block that `pack_block` packed. Raises ValueError for another blob."""
    names = layout.names
    try:
        numbers = struct.unpack(_format(len(names)), blob)
    except struct.error as error:
        raise ValueError(f"a block of the history does not fit its layout: {error}") from error
    signals = {}
    for at, name in enumerate(names):
        first = len(names) + at * _NUMBERS_PER_SIGNAL
        mean, low, high, last = numbers[first : first + _NUMBERS_PER_SIGNAL]
        bad = int(not isfinite(last))
        whole = (
            Summary(numbers[at], mean, low, high, bad) if numbers[at] else EMPTY._replace(bad=bad)
        )
        signals[name] = BlockSignal(whole, last)
    return signals


def _format(names: int) -> str:
    return f"<{names}Q{names * _NUMBERS_PER_SIGNAL}d"
