"""Aggregates the sampled texts of one step, from all ranks, into one record of text statistics.

The texts of a step are complete once the run has moved past the step, which a combined STEP of a
later step index shows; when a heartbeat is `settle_seconds` later than the last text; or when the
attempt is over. The result is a SAMPLE record of the whole run, without any text.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field, replace
from math import isfinite

from sentinel.model.record import HEARTBEAT, SAMPLE, START, STEP, STOP, WHOLE_RUN, Record
from sentinel.model.sample_text import TruncatedText, original_parts
from sentinel.stats.text_statistics import CompletionText, compute_text_statistics

MAX_TEXTS_PER_STEP = 32
"""Maximum number of texts of one step that are analysed: the first that arrive."""
MAX_OPEN_STEPS = 16
"""Maximum number of open steps; beyond it the oldest is closed, complete or not."""


@dataclass(slots=True)
class StepTexts:
    """Texts of one step so far; `last_record` is the newest record, without its texts."""

    last_record: Record
    texts: list[CompletionText] = field(default_factory=list)


@dataclass
class TextSampleAggregator:
    """Passes every record on; yields the statistics of a step's texts once they are complete."""

    settle_seconds: float = 10.0
    texts_by_step: dict[tuple[int, int], StepTexts] = field(default_factory=dict)
    """By attempt and step, in the order of their first text."""

    def process(self, record: Record) -> Iterable[Record]:
        """Add a record; what it completes, then the record."""
        if not self.texts_by_step and record.event is not SAMPLE:
            return (record,)
        return self._process(record)

    def _process(self, record: Record) -> Iterator[Record]:
        if record.event is SAMPLE:
            self._add_text(record)
            if len(self.texts_by_step) > MAX_OPEN_STEPS:
                yield self._close_step(next(iter(self.texts_by_step)))
        elif record.rank == WHOLE_RUN:
            yield from self._close_finished(self._finished_by(record))
        yield record

    def _add_text(self, record: Record) -> None:
        textless = replace(record, values={}, attributes={})
        step = self.texts_by_step.setdefault((record.attempt, record.step), StepTexts(textless))
        step.last_record = max(
            step.last_record, textless, key=lambda each: (each.step_index, each.time)
        )
        if len(step.texts) < MAX_TEXTS_PER_STEP:
            step.texts.append(completion_text(record))

    def _finished_by(self, record: Record) -> Callable[[StepTexts], bool]:
        """Whether that record of the whole run completes the texts of a step."""
        if record.event is HEARTBEAT:
            return lambda step: record.time - step.last_record.time >= self.settle_seconds
        if record.event in {START, STOP}:
            return lambda _: True
        is_step = record.event is STEP
        return lambda step: is_step and record.step_index > step.last_record.step_index

    def _close_finished(self, is_finished: Callable[[StepTexts], bool]) -> Iterator[Record]:
        for key in [key for key, step in self.texts_by_step.items() if is_finished(step)]:
            yield self._close_step(key)

    def _close_step(self, key: tuple[int, int]) -> Record:
        step = self.texts_by_step.pop(key)
        return Record(
            run=step.last_record.run,
            rank=WHOLE_RUN,
            step=step.last_record.step,
            time=step.last_record.time,
            event=SAMPLE,
            values=compute_text_statistics(step.texts),
            attempt=step.last_record.attempt,
            step_index=step.last_record.step_index,
        )


def completion_text(record: Record) -> CompletionText:
    """The completion of a SAMPLE record, for analysis."""
    text = record.attributes.get("completion", "")
    size = float(len(text))
    values = {name: value for name, value in record.values.items() if isfinite(value)}
    head_chars, tail_chars = values.get("head_chars", size), values.get("tail_chars", 0.0)
    parts = original_parts(TruncatedText(text, int(head_chars), int(tail_chars)))
    return CompletionText(parts, values.get("length", size), values.get("finished"))
