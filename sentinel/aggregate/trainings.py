"""Numbers the trainings of a run, and reports the start of each but the first.

A training is what one primary optimizer over one set of parameters does from its first step. The
ranks report one that begins within an attempt. One that begins with an attempt is recognized here:
its step number starts again where the first one of the run did, and no state was loaded before. So
is one in a log, which others were written to before: its step number goes back to the first ones.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from math import inf
from types import MappingProxyType

from sentinel.model.record import (
    EVAL,
    METADATA,
    STAGE,
    START,
    STATE_LOADED_KEY,
    STEP,
    STEPS_STARTED_OVER_KEY,
    TRAINING,
    TRAINING_KEY,
    WHOLE_RUN,
    Record,
)

_VALUE_EVENTS = frozenset({STEP, EVAL})

RESUME_KEYS = frozenset({STATE_LOADED_KEY, "resumed_from"})
"""Values of METADATA, before the first step of an attempt, that show a resume."""

FIRST_INTERVALS = 4
"""Logging intervals from the first step of a log, up to which a training that goes back is new: its
first row need not be at the same step, and a resume so early has lost nearly all of the training.
"""

MAX_LOSS_KEYS = 8
"""Keys of one log that are recognised as another loss."""


@dataclass
class LoggedSteps:
    """The step numbers of one training in a log; `first` is None before the first.

    `counts_epochs` is whether they are those of epochs, of a log that has no others; `end_epoch` is
    the epoch at which the run time of the whole training was logged: it has ended.
    """

    first: float | None = None
    last: float = 0.0
    highest: float = 0.0
    advances: int = 0
    counts_epochs: bool = False
    end_epoch: float = -inf

    def begins_training(self, record: Record) -> bool:
        """Add a record of a log; whether another training begins with it."""
        epoch = record.values.get("epoch", inf)
        is_after_end = epoch < self.end_epoch
        if is_after_end:
            self.first, self.end_epoch = None, -inf
        if "train_runtime" in record.values:
            self.end_epoch = epoch if epoch < inf else -inf
        step = record.values.get("global_step")
        if self.first is None:
            self.counts_epochs = step is None
        if self.counts_epochs:
            step = record.values.get("epoch")
        return (step is not None and self.starts_over(step)) or is_after_end

    def starts_over(self, step: float) -> bool:
        """Add a step; whether it goes back to the first ones, and so begins another training."""
        if step - step != 0.0:
            return False
        if self.first is None:
            self.first = self.last = self.highest = step
            return False
        last, self.last = self.last, step
        if step < last:
            interval = (self.highest - self.first) / max(1, self.advances)
            # A resume early in the run goes back by less.
            most = min(FIRST_INTERVALS * interval, (self.highest - self.first) / 2)
            if step <= self.first + most:
                self.first, self.highest, self.advances = step, step, 0
                return True
        elif step > self.highest:
            self.highest, self.advances = step, self.advances + 1
        return False


@dataclass
class TrainingTracker:
    """Passes every record on; yields a TRAINING of the run before the first step of another one.

    `number` is that of the training, 0 before the first; `first_step` is its first step number.
    `is_attempt_new` is whether an attempt has not taken a step yet, and `is_resumed` whether it has
    loaded a state. `last_reported` are attempt and number of the last TRAINING of the ranks.
    `logged_steps` are those of a log, which has no counts of the client; `loss_keys` are those that
    have stood for the loss in it.
    """

    number: int = 0
    first_step: int = 0
    is_attempt_new: bool = True
    is_resumed: bool = False
    last_reported: tuple[int, float] = (-1, 0.0)
    logged_steps: LoggedSteps = field(default_factory=LoggedSteps)
    loss_keys: list[str] = field(default_factory=list)

    def process(self, record: Record) -> Iterator[Record]:
        """Add a record; yield what precedes it, then the record."""
        if record.rank != WHOLE_RUN:
            yield record
            return
        if record.event in _VALUE_EVENTS:
            if self.is_attempt_new:
                yield from self._begin_attempt(record)
            if record.event is STEP and "optimizer_steps" not in record.values:
                yield from self._begin_logged(record)
        elif record.event is START:
            self.is_attempt_new, self.is_resumed = True, False
            self.logged_steps = LoggedSteps()
        elif record.event is METADATA:
            self.is_resumed |= not RESUME_KEYS.isdisjoint(record.values)
        elif record.event is TRAINING:
            if STEPS_STARTED_OVER_KEY in record.values:
                return  # of a stored run; the step after it shows it again
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
        self.is_attempt_new = False
        if not self.number:
            self.number, self.first_step = 1, record.step
        elif not self.is_resumed and record.step <= self.first_step:
            yield self._begin(record)

    def _begin_logged(self, record: Record) -> list[Record]:
        """What begins with this step of a log: a training, or levels of another loss.

        A part of the loss stands for it until the log has the loss itself.
        """
        begun: list[Record] = []
        if self.logged_steps.begins_training(record):
            begun.append(self._begin(record, {STEPS_STARTED_OVER_KEY: 1.0}))
        if "loss" in record.values:
            key = record.attributes.get("loss", "loss")
            if key not in self.loss_keys and len(self.loss_keys) < MAX_LOSS_KEYS:
                if self.loss_keys:
                    stage = replace(record, event=STAGE, values={}, attributes={}, spread={})
                    begun.append(stage)
                self.loss_keys.append(key)
        return begun

    def _begin(self, record: Record, values: Mapping[str, float] = MappingProxyType({})) -> Record:
        self.number += 1
        return replace(
            record,
            event=TRAINING,
            values={TRAINING_KEY: float(self.number), **values},
            attributes={},
            spread={},
        )
