"""Loss without progress: the loss has not fallen since the start of the run.

Formula
    fall     = fall of the least-squares line through ln(loss), on at most 64 block means of the
               run; se is its standard error, z the quantile 2.2 of Student's t for that many blocks
    never    = the whole run is flat: |fall| + z se < `improvement` and fall - z se < `moved` / 2,
               or `moved` / 4 over fewer than `points` values; its first values exceed the level by
               less than `moved`, or by less than z times the scatter of single blocks; held-out
               loss and accuracies are as at the start, too
    chance   = the latter half of the run is flat, and its level is ln 2 to within `moved`; of a
               loss over pairs: the mean of the latter half less z se exceeds (1 - `moved`) ln 2
    unmoved  = a loss of both signs: the means of both halves of the run differ by less than
               `noises` of its noise, including z se
    swinging = so do those of a loss whose noise exceeds a quarter of its level, at a learning rate
               of at least `high_rate`
    Finding  = one of these, twice in a row, over at least `points` values and a tenth of the run if
               its length is known; `coarse_points` suffice where a value stands for 10 steps or
               more, or where 8 evaluations on held-out data are as flat
    A run whose learning rate still rises is not evaluated, nor one with a reward, nor two networks
    trained against each other. For a loss that has fallen by 2 * `improvement`, only chance is
    evaluated. A loss is over pairs if the algorithm or other signals show it, or if its first
    values, or exactly its first one, are ln 2.

Units
    `improvement`, `moved`: fraction of the loss, 0.02 is two per cent. `points`, `coarse_points`:
    logged losses. `noises`: standard deviations of single losses. `high_rate`: learning rate.

Source
    Two one-sided tests of equivalence, Schuirmann 1987. For a choice between two alternatives,
    ln 2 = 0.693 is the loss of a model that guesses.

Defaults
    On 100 healthy synthetic runs (123,000 points) there is no false alarm. Of 600 flat logs of 44
    to 60 lines, each a mean of 10 or 50 steps with noise of 3 to 15 % a step, 383 are found after a
    median of 44 lines; of 600 such logs that fall by 5 to 50 %, none, and of 600 that fall by 1 to
    5 %, 147. Of 600 losses that guess between pairs 574 are found, of 600 that learn, one; of 600
    flat losses of both signs 377, of 600 that fall by 1 to 8 standard deviations, 31.
    `improvement` 0.03 is what can be shown in `points` 160 under common noise, or in
    `coarse_points` 40 means of many steps; `moved` 0.02 is the fall of a loss in its first batches
    if nothing is learned. `noises` 0.75 can be shown in about 130 values.
    `high_rate` 5e-3 is over ten times what Adam-like optimizers use.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt
from statistics import fmean, median, stdev
from typing import ClassVar

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record
from sentinel.signals.loss_kind import (
    CHANCE_LOSS,
    is_adversarial,
    is_pair_loss,
    is_policy_gradient,
)
from sentinel.stats.block_means import (
    BlockMeans,
    difference_of_halves,
    linear_fall,
    student_quantile,
)
from sentinel.stats.first_and_last import FirstAndLast

CONFIDENCE_Z = 2.2
"""Standard errors on either side: one false result in 70 if block means were independent."""

VALUES_PER_GROUP = 4
"""Losses in the smallest block."""

MIN_BLOCKS = 10
"""Minimum number of block means for a line."""

WARMUP_GROWTH = 1.01
"""Growth of the learning rate from one block to the next that counts as warm-up."""

COARSE_STRIDE = 10
"""Steps from one logged loss to the next from which a log is coarse."""

MIN_SIGNED_VALUES = 96
"""Losses of both signs before their halves are compared."""

MIN_SWING = 0.25
"""Standard deviation of a loss that swings, as a fraction of its level."""

MIN_NEGATIVE_SHARE = 0.05
"""Share of negative losses from which a loss has no meaningful logarithm."""

ACCURACIES = tuple(
    prefix + name
    for prefix in ("", "eval_")
    for name in ("accuracy", "token_accuracy", "preference_accuracy")
)

FIRST_LOSSES = 8
"""First losses whose mean is compared with the level of a loss of both signs."""

FIRST_LOSSES_Z = 1.5
"""Standard errors by which that mean exceeds the level if the loss fell at once."""

FIRST_LOSS_Z = 4.0
"""Standard deviations by which the very first loss exceeds the level if the loss fell at once."""

CHANGE_TO_SIGMA = 0.886
"""Standard deviation over the mean absolute change, for white normal noise."""

ACCURACY_GAIN = 0.03
"""Rise of an accuracy, as a fraction of its scale, that counts as learning."""


@dataclass
class LossNeverMoved:
    """Evaluates `loss` over the whole run, at every completed block."""

    improvement: float = 0.03
    moved: float = 0.02
    points: int = 160
    coarse_points: int = 40
    noises: float = 0.75
    high_rate: float = 5e-3

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Inspect one batch as the model receives it, with its labels and chat template. Check "
        "that the parameters to be trained require a gradient and are in the optimizer, and that "
        "{learning rate} is not 0. If the loss was at its minimum from the start, stop the run."
    )

    def __post_init__(self) -> None:
        self._log_blocks = BlockMeans(VALUES_PER_GROUP)
        # Untrimmed: a mean of the loss itself, for losses over pairs and of both signs.
        self._blocks = BlockMeans(VALUES_PER_GROUP, is_trimmed=False)
        self._count = 0
        self._negative_count = 0
        self._change_sum = 0.0
        self._last_loss = 0.0
        self._first_losses: list[float] = []
        self._first_mean: float | None = None
        self._start_step = 0
        self._first_step = 0
        self._rate = 0.0
        self._rate_at_last_block = 0.0
        self._max_steps = 0.0
        self._is_excluded = False
        self._is_pair_loss = False
        self._has_moved = False
        self._in_a_row = 0
        self._flat_evidence: dict[str, float] = {}
        self._held_out = FirstAndLast()
        self._accuracies: dict[str, FirstAndLast] = {}

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one loss."""
        values = record.values
        self._max_steps = values.get("max_steps", self._max_steps)
        if record.event is Event.TRAINING:
            # Its steps continue those of the training before.
            self._start_step = record.step
        self._is_excluded |= is_policy_gradient(record)
        if self._is_excluded:
            return None
        self._add_other_signals(record)
        loss = values.get("loss", 0.0)
        if loss == 0.0 or not isfinite(loss):
            return None
        self._rate = values.get("learning_rate", self._rate)
        self._add_loss(loss, record.step)
        if self._blocks.add(loss):
            self._is_excluded |= is_adversarial(values)
            self._is_pair_loss |= is_pair_loss(values, record.attributes.get("algorithm", ""))
            self._test_blocks(record.step)
        if self._flat_evidence:
            return self._finding()
        return CLEAR if self._has_moved else None

    def _add_loss(self, loss: float, step: int) -> None:
        if self._count:
            self._change_sum += abs(loss - self._last_loss)
        else:
            self._first_step = step
        if len(self._first_losses) < FIRST_LOSSES:
            self._first_losses.append(loss)
        self._last_loss = loss
        self._count += 1
        if loss > 0.0:
            self._log_blocks.add(log(loss))
        else:
            self._negative_count += 1

    def _add_other_signals(self, record: Record) -> None:
        values = record.values
        held_out = values.get("eval_loss", 0.0)
        if 0.0 < held_out < inf:
            self._held_out.add(log(held_out))
        for name in ACCURACIES:
            if name in values and isfinite(value := values[name]):
                self._accuracies.setdefault(name, FirstAndLast()).add(value)

    def _test_blocks(self, step: int) -> None:
        """Repeat the test after a new block."""
        is_warming_up = self._rate > WARMUP_GROWTH * self._rate_at_last_block > 0.0
        self._rate_at_last_block = self._rate
        if self._first_mean is None:
            self._first_mean = self._blocks.means[0]
            # At a rate that is far too high, only the first loss is that of guessing.
            for first, tolerance in ((self._first_mean, self.moved), (self._first_losses[0], 1e-4)):
                self._is_pair_loss |= abs(first - CHANCE_LOSS) < tolerance * CHANCE_LOSS
        passed = step - self._first_step
        is_too_early = is_warming_up or 10 * passed < self._max_steps
        # The log of a resumed run does not show its start.
        is_resumed = self._first_step - self._start_step > passed
        if is_too_early or is_resumed or not self._has_enough_values(passed):
            return
        flat = self._compare_with_start()
        self._in_a_row = self._in_a_row + 1 if flat else 0
        if self._in_a_row >= 2:
            self._flat_evidence = flat
        elif not flat:
            self._flat_evidence = {}

    def _has_enough_values(self, passed_steps: int) -> bool:
        if min(len(self._blocks.means), len(self._log_blocks.means)) < MIN_BLOCKS:
            return self._is_signed and self._count >= MIN_SIGNED_VALUES
        # Single steps may be those of a warm-up; evaluations are far apart.
        is_coarse = passed_steps >= COARSE_STRIDE * (self._count - 1)
        needed = self.coarse_points if is_coarse or self._is_held_out_flat() else self.points
        return self._count >= needed

    @property
    def _noise(self) -> float:
        """Standard deviation of single losses."""
        return CHANGE_TO_SIGMA * self._change_sum / max(1, self._count - 1)

    @property
    def _is_signed(self) -> bool:
        return self._negative_count > MIN_NEGATIVE_SHARE * self._count

    def _compare_with_start(self) -> dict[str, float]:
        """Evidence that nothing was learned; empty if there is none."""
        if self._has_learned_otherwise():
            return {}
        if self._is_signed:
            return self._compare_halves() if self._count >= MIN_SIGNED_VALUES else {}
        means = self._log_blocks.means
        latter = means[len(means) // 2 :]
        if self._never_moved(means):
            return self._line_evidence(means)
        if self._is_chance_level(latter):
            return self._line_evidence(latter)
        if self._is_pair_loss and (evidence := self._compare_with_chance()):
            return evidence
        return self._compare_halves() if self._swings() else {}

    def _swings(self) -> bool:
        """Whether the loss varies as much as it does if the learning rate is far too high."""
        level = median(self._blocks.means)
        is_wide = self._count >= MIN_SIGNED_VALUES and self._noise > MIN_SWING * level
        return is_wide and self._rate >= self.high_rate

    def _line_evidence(self, means: list[float]) -> dict[str, float]:
        fall, error = linear_fall(means)
        return {
            "median_loss": exp(median(means)),
            "loss_change_relative": -fall,
            "standard_error_of_change_relative": error,
            "logged_values": float(len(means) * self._log_blocks.values_per_block),
        }

    def _has_learned_otherwise(self) -> bool:
        """Whether the loss on held-out data has fallen, or an accuracy has risen."""
        held_out = self._held_out
        return (
            held_out.count > 0 and held_out.first[0] - held_out.lowest > self.improvement
        ) or any(
            accuracy.has_risen(ACCURACY_GAIN * (100.0 if max(accuracy.last) > 1.0 else 1.0))
            for accuracy in self._accuracies.values()
        )

    def _is_held_out_flat(self) -> bool:
        held_out = self._held_out
        return (
            held_out.is_full
            and abs(median(held_out.last) - held_out.first[0]) < self.moved
            and held_out.first[0] - held_out.lowest < self.improvement
        )

    def _is_flat(self, means: list[float]) -> bool:
        fall, error = linear_fall(means)
        uncertainty = student_quantile(CONFIDENCE_Z, len(means) - 2) * error
        shown_fall = self.moved / (2 if self._count >= self.points else 4)
        return abs(fall) + uncertainty < self.improvement and fall - uncertainty < shown_fall

    def _never_moved(self, means: list[float]) -> bool:
        fall, error = linear_fall(means)
        self._has_moved |= fall - CONFIDENCE_Z * error > 2 * self.improvement
        return not self._has_moved and self._is_flat(means) and not self._dropped_at_start(means)

    def _is_chance_level(self, means: list[float]) -> bool:
        return abs(median(means) - log(CHANCE_LOSS)) < self.moved and self._is_flat(means)

    def _dropped_at_start(self, means: list[float]) -> bool:
        """Whether the first losses exceed the later level by more than their scatter."""
        if self._is_held_out_flat():
            return False
        level = median(means)
        # Blocks grow as neighbours merge; the first block had the smallest size.
        first_block_factor = sqrt(self._log_blocks.values_per_block / VALUES_PER_GROUP)
        scatter = median(abs(mean - level) for mean in means) * 1.4826 * first_block_factor
        bounds = (
            (self._first_mean or 0.0, CONFIDENCE_Z * scatter),
            (self._first_losses[0], FIRST_LOSS_Z * sqrt(VALUES_PER_GROUP) * scatter),
        )
        return any(
            first > 0.0 and log(first) - level > max(self.moved, bound) for first, bound in bounds
        )

    def _compare_with_chance(self) -> dict[str, float]:
        means = self._blocks.means[len(self._blocks.means) // 2 :]
        level = fmean(means)
        quantile = student_quantile(CONFIDENCE_Z, len(means) - 1)
        error = stdev(means, level) / sqrt(len(means))
        fall, fall_error = linear_fall(means)
        tolerance = self.moved * CHANCE_LOSS
        is_falling = fall - quantile * fall_error > tolerance
        if is_falling or level - quantile * error < CHANCE_LOSS - tolerance:
            return {}
        return {
            "median_loss": median(means),
            "mean_loss_of_latter_half": level,
            "standard_error_of_mean_loss": error,
            "logged_values": float(len(means) * self._blocks.values_per_block),
        }

    def _compare_halves(self) -> dict[str, float]:
        means = self._blocks.means
        difference, error = difference_of_halves(means)
        quantile = student_quantile(CONFIDENCE_Z, len(means) - 2)
        noise, level = self._noise, median(means)
        excess = fmean(self._first_losses) - level
        is_dropped = excess > FIRST_LOSSES_Z * noise / sqrt(FIRST_LOSSES)
        if is_dropped or abs(difference) + quantile * error > self.noises * noise:
            return {}
        half = len(means) // 2
        return {
            "median_loss": level,
            "mean_loss_of_first_half": fmean(means[:half]),
            "mean_loss_of_second_half": fmean(means[-half:]),
            "standard_deviation_of_loss": noise,
            "logged_values": float(len(means) * self._blocks.values_per_block),
        }

    def _finding(self) -> Finding:
        flat = self._flat_evidence
        evidence = {name: value for name, value in flat.items() if "standard_error" not in name}
        return Finding(summary=_describe(flat), evidence=evidence, onset_step=self._first_step)


def _describe(flat: Mapping[str, float]) -> str:
    level, count = flat["median_loss"], int(flat["logged_values"])
    if "standard_deviation_of_loss" in flat:
        return (
            "Loss does not fall significantly: its mean is "
            f"{flat['mean_loss_of_first_half']:.3g} in the first half of {count} logged values and "
            f"{flat['mean_loss_of_second_half']:.3g} in the second; its "
            f"standard deviation is {flat['standard_deviation_of_loss']:.2g}."
        )
    if "mean_loss_of_latter_half" in flat:
        return (
            f"Loss is not below ln 2 = 0.693, the loss of random guessing: its mean over the last "
            f"{count} logged values is {flat['mean_loss_of_latter_half']:.3g}, with a standard "
            f"error of {flat['standard_error_of_mean_loss']:.2g}."
        )
    is_chance = abs(level - CHANCE_LOSS) < 0.02
    return (
        f"Loss does not fall significantly: it is {level:.4g} and changed by "
        f"{flat['loss_change_relative']:+.2%} over {count} logged values, with a standard error of "
        f"{flat['standard_error_of_change_relative']:.2%}."
        + (" ln 2 is the loss of random guessing." if is_chance else "")
    )
