"""High learning rate: the learning rate is far above the usual for this kind of training.

Formula
    high     = the rate, or the declared one, is more than `high` times the highest usual for this
               kind of training
    far      = the rate has been more than `far` times that highest in `points` steps, and in 8
               records
    collapse = high, and the median gradient norm of the last 16 is a hundredth of that of the first
               16, or a thousandth of the highest of these
    level, spread = mean and standard deviation of the last 16 losses
    flat     = five times that high, and over the latter three quarters of at least `points` values
               the loss has not fallen by `gain`, with two standard errors
    learnt   = the level is below a tenth of the first loss
    Finding  = far, collapse or flat, in a run without a reward that has not learnt; it
               ends once the run has learnt, or the rate is lower and the level has fallen by a
               quarter since it was found
    signed   = a loss that was negative has no lowest value, and shares of it mean nothing. It is
               flat unless it has fallen by its spread, it has learnt once its level is four spreads
               below that of the first 16 losses, and it ends once its level is one spread lower
               than when it was found
    uneven   = one parameter group of the optimizer has at least 50 times the learning rate of most
               weights, as its client reports
    info     = high, or uneven, for the first 16 records

Units
    The unit of `learning_rate` is that of the framework. `high`, `far`: plain factors. `points`:
    logged values, and steps. `gain`: fraction of 1, of the loss.

Source
    Usual rates by method, and their sources: `sentinel.signals.usual_learning_rate`. At a rate far
    too high the loss stays at the level of token frequencies, and units saturate, so that the
    gradient vanishes. What a high rate has destroyed does not return as a schedule lowers it.

Defaults
    `high` 10 is beyond what a sweep of rates contains, and `far` 100 beyond any usual recipe.
    With adapters at rates of 0.2 and 2 the loss of a small language model stays at 5.35 in 200
    steps, where it falls to 5.0 at 0.002. `points` 64 are enough for a level. A loss that falls as
    a power law of -0.2 falls by 24 % in the latter three quarters of a run, far more than `gain`
    0.05.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf
from statistics import fmean, median, pstdev

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import METADATA, START, STEP, Record
from sentinel.signals.usual_learning_rate import (
    ADAPTER_SETTINGS,
    OPTIMIZER_SETTINGS,
    UNEVEN_RATES,
    usual_learning_rate,
)
from sentinel.stats.block_means import BlockMeans, linear_fall
from sentinel.stats.first_and_last import FirstAndLast

NOTED_RECORDS = 16
"""Records for which a high rate is noted."""

LEVEL_VALUES = 16
"""Values in a level of the gradient norm."""

FAR_RECORDS = 8
"""Records at a rate that is far too high, in a log whose lines are many steps apart."""

LEARNT_SHARE = 0.1
"""Share of its first value below which a loss has been learnt, whatever the rate."""

RECOVERED_SHARE = 0.75
"""Share of the loss at the first harm below which the training has recovered."""

LEARNT_SPREADS, RECOVERED_SPREADS, FLAT_SPREADS = 4.0, 1.0, 1.0
"""The same of a loss that can be negative, in standard deviations of its values: by one, the mean
of 16 has fallen by four standard errors."""

COLLAPSED_NORM_SHARE = 0.01
"""Share of its first level below which the gradient norm has collapsed."""

COLLAPSED_HIGHEST_SHARE = 0.001
"""Share of the highest of the first norms, after which the others may have collapsed already."""

FLAT_LOSS_FACTOR = 5.0
"""Factor on a high rate that explains a loss that stays; at less the data may do so."""


@dataclass
class LearningRateHigh(DetectorDefaults):
    """Evaluates `learning_rate`, logged or declared, with the framework and the algorithm."""

    high: float = 10.0
    far: float = 100.0
    points: int = 64
    gain: float = 0.05

    signal = "learning_rate"
    scope = Scope.TRAINING
    remedy = (
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
        self._uneven_rates: dict[str, float] = {}
        self._uneven_records_left = NOTED_RECORDS
        self._first_step: int | None = None
        self._highest_rate, self._highest_rate_step = 0.0, 0
        self._far_records, self._far_step = 0, 0
        self._has_reward = False
        self._harm = ""
        """What the rate has done, as the end of a sentence, since it was found."""
        self._recovered_loss = 0.0
        """The level of the loss below which the training has recovered."""
        self._is_signed = False
        self._losses, self._norms = FirstAndLast(LEVEL_VALUES), FirstAndLast(LEVEL_VALUES)
        self._loss_blocks = BlockMeans()

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one record of a step, or read the declared settings."""
        if record.event in (START, METADATA):
            self._read_config(record)
        if record.event is not STEP:
            return None
        if self._usual_highest == inf:
            return self._uneven_finding()
        rate = record.values.get("learning_rate", self._declared_rate)
        if not 0.0 < rate < inf:
            return None
        self._has_reward = self._has_reward or "reward" in record.values
        self._update_rates(rate, record.step)
        if self._has_reward:
            self._harm = ""
        else:
            self._update_levels(record)
            self._update_harm(rate, record.step)
        return self._finding(rate, record.step) or self._uneven_finding() or CLEAR

    def _read_config(self, record: Record) -> None:
        names = ("framework", "algorithm", *OPTIMIZER_SETTINGS, *ADAPTER_SETTINGS)
        known: dict[str, str | float] = {**record.values, **record.attributes}
        self._metadata |= {name: known[name] for name in names if name in known}
        self._declared_rate = record.values.get("learning_rate", self._declared_rate)
        if all(name in record.values for name in UNEVEN_RATES):
            self._uneven_rates = {name: record.values[name] for name in UNEVEN_RATES}
            self._uneven_records_left = NOTED_RECORDS
        usual = usual_learning_rate(self._metadata)
        self._usual_highest, self._usual_kind = (
            (inf, "") if usual is None else (usual.highest, usual.kind)
        )

    def _update_levels(self, record: Record) -> None:
        loss, norm = record.values.get("loss", inf), record.values.get("grad_norm", inf)
        if loss - loss == 0.0:
            self._is_signed = self._is_signed or loss < 0.0
            self._losses.add(loss)
            self._loss_blocks.add(loss)
        if norm - norm == 0.0:
            self._norms.add(norm)

    def _update_rates(self, rate: float, step: int) -> None:
        if rate > self.high * self._usual_highest and self._first_step is None:
            self._first_step = step
        if rate > self._highest_rate:
            self._highest_rate, self._highest_rate_step = rate, step
        if rate > self.far * self._usual_highest:
            self._far_step = self._far_step if self._far_records else step
            self._far_records += 1

    def _update_harm(self, rate: float, step: int) -> None:
        """Whether the rate does harm now; what it has done lasts until the loss has recovered."""
        level = fmean(self._losses.last) if self._losses.count else inf
        if level < self._learnt_level():
            self._harm = ""
            return
        is_high = rate > self.high * self._usual_highest
        if harm := self._harm_of(rate, step) if is_high else "":
            if not self._harm:
                is_signed, fall = self._is_signed, RECOVERED_SPREADS * self._spread()
                self._recovered_loss = level - fall if is_signed else RECOVERED_SHARE * level
            self._harm = harm
        elif level == inf or level < self._recovered_loss:
            self._harm = ""

    def _learnt_level(self) -> float:
        """The level of the loss below which it has been learnt."""
        first = self._losses.first
        if not self._is_signed:
            return LEARNT_SHARE * first[0] if first else 0.0
        if len(first) < LEVEL_VALUES:
            return -inf
        return fmean(first) - LEARNT_SPREADS * self._spread()

    def _spread(self) -> float:
        return pstdev(self._losses.last) if self._losses.count else 0.0

    def _finding(self, rate: float, step: int) -> Finding | None:
        """A rate far above the usual: a note at first, a problem with evidence of harm."""
        is_high = rate > self.high * self._usual_highest
        self._records_left -= is_high
        if not self._harm and (not is_high or self._records_left < 0):
            return None
        highest = self._highest_rate
        times = f"{highest / self._usual_highest:.0f} times the highest usual for"
        usual = f"{times} {self._usual_kind} ({self._usual_highest:g})"
        now = f"The learning rate is {rate:.3g}, {usual}"
        if rate < highest:
            now = f"The learning rate was {highest:.3g} at step {self._highest_rate_step}, {usual}"
            now += f", and is {rate:.3g} at step {step}"
        return Finding(
            summary=f"{now}{self._harm}.",
            evidence={
                "learning_rate": rate,
                "highest_learning_rate": highest,
                "highest_usual_learning_rate": self._usual_highest,
            },
            severity=None if self._harm else Severity.INFO,
            onset_step=self._first_step,
        )

    def _uneven_finding(self) -> Finding | None:
        """One group whose rate is far above that of most weights: it may be a mistake."""
        if not self._uneven_rates or self._uneven_records_left <= 0:
            return None
        self._uneven_records_left -= 1
        highest, number, share, main = (self._uneven_rates[name] for name in UNEVEN_RATES)
        return Finding(
            summary=f"Parameter group {number:.0f}, with {share:.1%} of the weights, has the "
            f"learning rate {highest:.3g}, {highest / main:.0f} times that of most weights "
            f"({main:.3g}).",
            evidence=dict(self._uneven_rates),
            severity=Severity.INFO,
        )

    def _harm_of(self, rate: float, step: int) -> str:
        """What a high rate does, as the end of a sentence; empty if it does nothing."""
        norms = self._norms
        if norms.count >= self.points:
            first, highest, latest = median(norms.first), max(norms.first), median(norms.last)
            is_collapsed = latest < COLLAPSED_NORM_SHARE * first
            before = first if is_collapsed else highest
            if is_collapsed or latest < COLLAPSED_HIGHEST_SHARE * highest:
                return f"; the gradient norm has fallen from {before:.3g} to {latest:.3g}"
        return self._flat_loss(rate) or self._far_rate(step)

    def _flat_loss(self, rate: float) -> str:
        blocks = self._loss_blocks
        means = blocks.means[len(blocks.means) // 4 :]
        is_far = rate > FLAT_LOSS_FACTOR * self.high * self._usual_highest
        if not is_far or len(blocks.means) * blocks.values_per_block < self.points:
            return ""
        level, (fall, error) = sum(means) / len(means), linear_fall(means)
        least = FLAT_SPREADS * self._spread() if self._is_signed else self.gain * level
        if fall + 2.0 * error > least:
            return ""
        count = len(means) * blocks.values_per_block
        return f"; the loss has not improved in {count} logged values: it is {level:.4g}"

    def _far_rate(self, step: int) -> str:
        steps = step - self._far_step + 1
        if self._far_records < FAR_RECORDS or steps < self.points:
            return ""
        if not self._losses.count:
            return f"; it has been far too high for {steps} steps"
        now, first = fmean(self._losses.last), self._losses.first[0]
        return f"; the loss is {now:.4g} after {steps} steps, and was {first:.4g} at first"
