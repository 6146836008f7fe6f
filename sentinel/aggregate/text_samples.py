"""Samples: the texts of one step, from all ranks, brought together into one record of statistics.

A step's texts are judged once the run has moved past it, which a combined STEP of a later beat
says; or when a tick is `settle` seconds younger than the last of them; or when the attempt is over.
The record is a SAMPLE of the whole run, and holds no text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import isfinite

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.stats.text_statistics import CompletionText, compute_text_statistics
from sentinel.stats.text_truncation import TruncatedText, original_parts

MAX_TEXTS_PER_STEP = 32
"""Texts of one step that are judged: the first that are heard of."""
MAX_OPEN_STEPS = 16
"""Steps whose texts are held at most; beyond it the oldest is judged as it stands."""


@dataclass(slots=True)
class StepTexts:
    """Texts of one step so far; `last` is the newest record of one, without what it said."""

    last_record: Record
    texts: list[CompletionText] = field(default_factory=list)


@dataclass
class TextSampleAggregator:
    """Passes every record on, and after the last text of a step, what was found in its texts.

    `settle` is in seconds.
    """

    settle_seconds: float = 10.0
    texts_by_step: dict[tuple[int, int], StepTexts] = field(default_factory=dict)
    """By attempt and step, in the order they were first heard of."""

    def process(self, record: Record) -> Iterator[Record]:
        """Take one record in; yield it, behind what it completes."""
        if record.event is Event.SAMPLE:
            self._add_text(record)
            if len(self.texts_by_step) > MAX_OPEN_STEPS:
                yield self._close_step(next(iter(self.texts_by_step)))
        elif record.rank == WHOLE_RUN:
            yield from self._close_finished(self._finished_by(record))
        yield record

    def _add_text(self, record: Record) -> None:
        silent = replace(record, values={}, attributes={})
        step = self.texts_by_step.setdefault((record.attempt, record.step), StepTexts(silent))
        step.last_record = max(
            step.last_record, silent, key=lambda last: (last.step_index, last.time)
        )
        if len(step.texts) < MAX_TEXTS_PER_STEP:
            step.texts.append(completion_text(record))

    def _finished_by(self, record: Record) -> Callable[[StepTexts], bool]:
        """Which of the open steps that record of the whole run says are over."""
        if record.event is Event.HEARTBEAT:
            return lambda step: record.time - step.last_record.time >= self.settle_seconds
        if record.event in {Event.START, Event.STOP}:
            return lambda _: True
        moved = record.event is Event.STEP
        return lambda step: moved and record.step_index > step.last_record.step_index

    def _close_finished(self, is_finished: Callable[[StepTexts], bool]) -> Iterator[Record]:
        for place in [place for place, step in self.texts_by_step.items() if is_finished(step)]:
            yield self._close_step(place)

    def _close_step(self, key: tuple[int, int]) -> Record:
        step = self.texts_by_step.pop(key)
        return Record(
            run=step.last_record.run,
            rank=WHOLE_RUN,
            step=step.last_record.step,
            time=step.last_record.time,
            event=Event.SAMPLE,
            values=compute_text_statistics(step.texts),
            attempt=step.last_record.attempt,
            step_index=step.last_record.step_index,
        )


def completion_text(record: Record) -> CompletionText:
    """The completion that a SAMPLE tells of, as it is judged."""
    completion = record.attributes.get("completion", "")
    size = float(len(completion))
    told = {name: value for name, value in record.values.items() if isfinite(value)}
    cut = TruncatedText(completion, int(told.get("first", size)), int(told.get("last", 0.0)))
    return CompletionText(original_parts(cut), told.get("length", size), told.get("finished"))
