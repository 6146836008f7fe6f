"""High learning rate: the learning rate is far above the usual for this kind of training.

Formula
    high     = the rate, or the declared one, is more than `high` times the highest usual for this
               kind of training
    collapse = high, and the median gradient norm of the last 16 is a hundredth of that of the first
               16
    swinging = high, and the third highest norm of the last `points` is 30 times their median
    flat     = five times that high, and over the latter three quarters of at least `points` values
               the loss has not fallen by `gain`, with two standard errors, and is above a tenth of
               its first value
    Finding  = collapse, swinging or flat, in a run without a reward
    info     = high, for the first 16 records

Units
    The unit of `learning_rate` is that of the framework. `high`: plain factor. `points`: logged
    values. `gain`: fraction of 1, of the loss.

Source
    Usual rates by method, and their sources: `sentinel.signals.usual_learning_rate`. At a rate far
    too high the loss stays at the level of token frequencies, and units saturate, so that the
    gradient vanishes.

Defaults
    `high` 10 is beyond what a sweep of rates contains. `points` 64 are enough for a level. A loss
    that falls as a power law of -0.2 falls by 24 % in the latter three quarters of a run, far more
    than `gain` 0.05.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf
from statistics import median
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record
from sentinel.signals.usual_learning_rate import ADAPTER_SETTINGS, usual_learning_rate
from sentinel.stats.block_means import BlockMeans, linear_fall

NOTED_RECORDS = 16
"""Records for which a high rate is noted."""

LEVEL_VALUES = 16
"""Values in a level of the gradient norm."""

LEARNT_SHARE = 0.1
"""Share of its first value below which a loss has been learnt, whatever the rate."""

COLLAPSED_NORM_SHARE = 0.01
"""Share of its first level below which the gradient norm has collapsed."""

FLAT_LOSS_FACTOR = 5.0
"""Factor on a high rate that explains a loss that stays; at less the data may do so."""

WILD_NORM_FACTOR = 30.0
"""Third highest norm divided by the median of the window, in a training that swings wildly."""


@dataclass
class LearningRateHigh:
    """Evaluates `learning_rate`, logged or declared, with the framework and the algorithm."""

    high: float = 10.0
    points: int = 64
    gain: float = 0.05

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "learning_rate"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Start again from the initial weights with {learning rate} at a usual value: 1e-5 to "
        "5e-5 for full fine-tuning, 1e-4 to 5e-4 with adapters, about 1e-6 for training by "
        "preferences or by reward. If the rate is intended, raise the setting `high` of this "
        "detector."
    )

    def __post_init__(self) -> None:
        self._metadata: dict[str, str | float] = {}
        self._usual_highest, self._usual_kind = inf, ""
        self._declared_rate = 0.0
        self._records_left = NOTED_RECORDS
        self._first_step: int | None = None
        self._has_reward = False
        self._first_loss: float | None = None
        self._loss_blocks = BlockMeans()
        self._first_norms: list[float] = []
        self._norms: deque[float] = deque(maxlen=self.points)

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one record of a step, or read the declared settings."""
        if record.event in (Event.START, Event.METADATA):
            self._read_config(record)
        if record.event is not Event.STEP or self._usual_highest == inf:
            return None
        rate = record.values.get("learning_rate", self._declared_rate)
        if not 0.0 < rate < inf:
            return None
        if self._first_step is None:
            self._first_step = record.step
        self._update_levels(record)
        return self._finding(rate) or Clear()

    def _read_config(self, record: Record) -> None:
        names = ("framework", "algorithm", *ADAPTER_SETTINGS)
        known: dict[str, str | float] = {**record.values, **record.attributes}
        self._metadata |= {name: known[name] for name in names if name in known}
        self._declared_rate = record.values.get("learning_rate", self._declared_rate)
        usual = usual_learning_rate(self._metadata)
        if usual is not None:
            self._usual_highest, self._usual_kind = usual.highest, usual.kind

    def _update_levels(self, record: Record) -> None:
        values = record.values
        self._has_reward = self._has_reward or "reward" in values
        loss, norm = values.get("loss", inf), values.get("grad_norm", inf)
        if loss - loss == 0.0:
            self._first_loss = loss if self._first_loss is None else self._first_loss
            self._loss_blocks.add(loss)
        if norm - norm == 0.0:
            self._norms.append(norm)
            if len(self._first_norms) < LEVEL_VALUES:
                self._first_norms.append(norm)

    def _finding(self, rate: float) -> Finding | None:
        """A rate far above the usual: a note at first, a problem with evidence of harm."""
        if not rate > self.high * self._usual_highest:
            return None
        harm = self._harm(rate)
        self._records_left -= 1
        if not harm and self._records_left < 0:
            return None
        return Finding(
            summary=f"The learning rate is {rate:.3g}, {rate / self._usual_highest:.0f} times the "
            f"highest usual for {self._usual_kind} ({self._usual_highest:g}){harm}.",
            evidence={"learning_rate": rate, "highest_usual_learning_rate": self._usual_highest},
            severity=None if harm else Severity.INFO,
            onset_step=self._first_step,
        )

    def _harm(self, rate: float) -> str:
        """What a high rate has done, as the end of a sentence; empty if it has done nothing."""
        if self._has_reward:
            return ""
        norms = self._norms
        if len(norms) >= self.points:
            ordered, first = sorted(norms), median(self._first_norms)
            latest = median(list(norms)[-LEVEL_VALUES:])
            if latest < COLLAPSED_NORM_SHARE * first:
                return f", and the gradient norm has fallen from {first:.3g} to {latest:.3g}"
            if ordered[-3] > WILD_NORM_FACTOR * median(ordered) > 0.0:
                return (
                    f", and the gradient norm swings: its median is {median(ordered):.3g}, its "
                    f"third highest {ordered[-3]:.3g} in {len(norms)} values"
                )
        blocks = self._loss_blocks
        means = blocks.means[len(blocks.means) // 4 :]
        is_far = rate > FLAT_LOSS_FACTOR * self.high * self._usual_highest
        if not is_far or len(blocks.means) * blocks.values_per_block < self.points:
            return ""
        level, (fall, error) = sum(means) / len(means), linear_fall(means)
        is_learnt = level < LEARNT_SHARE * (self._first_loss or 0.0)
        if is_learnt or fall + 2.0 * error > self.gain * abs(level):
            return ""
        count = len(means) * blocks.values_per_block
        return f", and the loss has not improved in {count} logged values; it is {level:.4g}"
