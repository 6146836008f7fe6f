"""Numbers the trainings of a run, and reports the start of each but the first.

A training is what one primary optimizer over one set of parameters does from its first step. The
ranks report one that begins within an attempt. One that begins with an attempt is recognized here:
its step number starts again where the first one of the run did, and no state was loaded before.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace

from sentinel.model.record import STATE_LOADED_KEY, TRAINING_KEY, WHOLE_RUN, Event, Record

RESUME_KEYS = frozenset({STATE_LOADED_KEY, "resumed_from"})
"""Values of METADATA, before the first step of an attempt, that show a resume."""


@dataclass
class TrainingTracker:
    """Passes every record on; yields a TRAINING of the run before the first step of another one.

    `number` is that of the training, 0 before the first; `first_step` is its first step number.
    `is_attempt_new` is whether an attempt has not taken a step yet, and `is_resumed` whether it has
    loaded a state. `last_reported` are attempt and number of the last TRAINING of the ranks.
    """

    number: int = 0
    first_step: int = 0
    is_attempt_new: bool = True
    is_resumed: bool = False
    last_reported: tuple[int, float] = (-1, 0.0)

    def process(self, record: Record) -> Iterator[Record]:
        """Add a record; yield what precedes it, then the record."""
        if record.rank != WHOLE_RUN:
            yield record
            return
        if record.event is Event.START:
            self.is_attempt_new, self.is_resumed = True, False
        elif record.event is Event.METADATA:
            self.is_resumed |= not RESUME_KEYS.isdisjoint(record.values)
        elif record.event in (Event.STEP, Event.EVAL):
            yield from self._begin_attempt(record)
        elif record.event is Event.TRAINING:
            reported = record.attempt, record.values.get(TRAINING_KEY, 0.0)
            # Ranks can differ by a step in when it begins.
            if reported > self.last_reported:
                self.last_reported = reported
                # A stored run has the TRAINING that was added before the first step of an attempt.
                self.is_attempt_new, self.number = False, max(1, self.number)
                yield self._begin(record)
            return
        yield record

    def _begin_attempt(self, record: Record) -> Iterator[Record]:
        """The TRAINING, if with this first step of an attempt another training begins."""
        if not self.is_attempt_new:
            return
        self.is_attempt_new = False
        if not self.number:
            self.number, self.first_step = 1, record.step
        elif not self.is_resumed and record.step <= self.first_step:
            yield self._begin(record)

    def _begin(self, record: Record) -> Record:
        self.number += 1
        return replace(
            record,
            event=Event.TRAINING,
            values={TRAINING_KEY: float(self.number)},
            attributes={},
            spread={},
        )
