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
from sentinel.stats.text_statistics import Text, judged
from sentinel.stats.text_truncation import Cut, parts

JUDGED = 32
"""Texts of one step that are judged: the first that are heard of."""
OPEN_STEPS = 16
"""Steps whose texts are held at most; beyond it the oldest is judged as it stands."""


@dataclass(slots=True)
class Gathered:
    """Texts of one step so far; `last` is the newest record of one, without what it said."""

    last: Record
    texts: list[Text] = field(default_factory=list)


@dataclass
class Samples:
    """Passes every record on, and after the last text of a step, what was found in its texts.

    `settle` is in seconds.
    """

    settle: float = 10.0
    steps: dict[tuple[int, int], Gathered] = field(default_factory=dict)
    """By attempt and step, in the order they were first heard of."""

    def feed(self, record: Record) -> Iterator[Record]:
        """Take one record in; yield it, behind what it completes."""
        if record.event is Event.SAMPLE:
            self._hear(record)
            if len(self.steps) > OPEN_STEPS:
                yield self._judge(next(iter(self.steps)))
        elif record.rank == WHOLE_RUN:
            yield from self._judge_all(self._over(record))
        yield record

    def _hear(self, record: Record) -> None:
        silent = replace(record, values={}, facts={})
        step = self.steps.setdefault((record.attempt, record.step), Gathered(silent))
        step.last = max(step.last, silent, key=lambda last: (last.beat, last.time))
        if len(step.texts) < JUDGED:
            step.texts.append(text_of(record))

    def _over(self, record: Record) -> Callable[[Gathered], bool]:
        """Which of the open steps that record of the whole run says are over."""
        if record.event is Event.TICK:
            return lambda step: record.time - step.last.time >= self.settle
        if record.event in {Event.START, Event.STOP}:
            return lambda _: True
        moved = record.event is Event.STEP
        return lambda step: moved and record.beat > step.last.beat

    def _judge_all(self, over: Callable[[Gathered], bool]) -> Iterator[Record]:
        for place in [place for place, step in self.steps.items() if over(step)]:
            yield self._judge(place)

    def _judge(self, place: tuple[int, int]) -> Record:
        step = self.steps.pop(place)
        return Record(
            run=step.last.run,
            rank=WHOLE_RUN,
            step=step.last.step,
            time=step.last.time,
            event=Event.SAMPLE,
            values=judged(step.texts),
            attempt=step.last.attempt,
            beat=step.last.beat,
        )


def text_of(record: Record) -> Text:
    """The completion that a SAMPLE tells of, as it is judged."""
    completion = record.facts.get("completion", "")
    size = float(len(completion))
    told = {name: value for name, value in record.values.items() if isfinite(value)}
    cut = Cut(completion, int(told.get("first", size)), int(told.get("last", 0.0)))
    return Text(parts(cut), told.get("length", size), told.get("finished"))
