"""Loss without progress: the loss has not fallen since the start of the run.

Formula
    fall     = fall of the least-squares line through ln(loss), on at most 64 block means, with
               confidence bounds at the quantile 2.2 of Student's t that allow for autocorrelation
    flat     = both bounds are within `improvement`, or as many times that as there are `points`
               values, up to `hidden`
    never    = the whole run is flat, and its first values exceed its level by less than `moved`,
               or by less than 2.2 times the scatter of single blocks; and the latter half does not
               fall by certainly more than the first: that is a slow start
    chance   = the latter half of the run is flat, and its level is that of guessing to within
               `moved`: ln of the number of classes, or of the vocabulary, if the settings or the
               graph of the loss show it, else ln 2; of a loss over pairs: the mean of the latter
               half less 2.2 standard errors exceeds (1 - `moved`) ln 2
    unmoved  = the fall of a loss of both signs, or of one that swings by a quarter of its level at
               a learning rate of at least 5e-3, is not significant, nor is that of its ranks, which
               show a fall over several orders of magnitude
    Finding  = one of these, twice in a row, over at least `points` values and a tenth of the run if
               its length is known; `coarse_points` suffice where a value stands for 10 steps or
               more or for an epoch, where 8 evaluations on held-out data are as flat, and at the
               end of a run that finished if a value stands for 2 steps or more; half of `points`
               at the end of another run
    A run whose learning rate still rises is not evaluated, nor one with a reward, or a loss of both
    signs and a KL to a reference, nor two networks trained against each other, nor one whose
    held-out loss has fallen or whose accuracy has risen. For a loss that has fallen by
    `improvement`, only chance is evaluated. A loss is over pairs if the algorithm or other signals
    show it, or if its first values, or exactly its first one, are ln 2.

Units
    `improvement`, `hidden`, `moved`: fraction of the loss, 0.02 is two per cent. `points`,
    `coarse_points`: logged losses.

Source
    Two one-sided tests of equivalence, Schuirmann 1987. For a choice between two alternatives,
    ln 2 = 0.693 is the loss of a model that guesses.

Defaults
    Of 40 generated logs each that learn nothing, with noise of 9 % over 300 values, or of 5, 9, 15
    or 30 % over 1,000, 36, 40, 40, 39 and 30 are found. Of 240 such logs that fall by 40 % none is;
    of 240 that fall by 20 %, a third of them in a straight line, 16 are until their fall shows. In
    `points` 160 values, or in `coarse_points` 40 means of many steps, common noise shows a fall of
    `improvement` 0.03; the noise of a longer run may hide one up to `hidden` 0.1. `moved` 0.02 is
    the fall of a loss in its first batches if nothing is learned. Of 240 runs each of 50 to 90
    values with a noise of 1, 2 and 5 %, 240, 203 and 4 that learn nothing are found at their end,
    and none of those that fall by 10 %.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, isfinite, log, sqrt
from statistics import fmean, median, stdev

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding
from sentinel.model.record import STEP, STOP, TRAINING, Record
from sentinel.signals.loss_kind import (
    CHANCE_LOSS,
    are_signed,
    class_count,
    is_adversarial,
    is_pair_loss,
    is_policy_gradient,
)
from sentinel.stats.block_means import (
    BlockMeans,
    fall_bounds,
    falls_faster,
    linear_fall,
    ranks,
    student_quantile,
)
from sentinel.stats.first_and_last import FirstAndLast

CONFIDENCE_Z = 2.2
"""Standard errors on either side: one false result in 70 if block means were independent."""

EQUIVALENCE_Z = 1.645
"""The same of the bounds between which a fall is none: one in 20, as usual for equivalence."""

BOUND_GROWTH = 1.5
"""Power of the number of values by which the bound of a fall grows: a steady fall grows by the
first, so that a run that learns slowly is not taken for one that does not before its fall shows."""

LEAST_LOSS = 1e-300
"""Lower means of the first losses count as this, so that their logarithm exists."""

VALUES_PER_GROUP = 4
"""Losses in the smallest block."""

MIN_BLOCKS = 10
"""Minimum number of block means for a line."""

WARMUP_GROWTH = 1.01
"""Growth of the learning rate from one block to the next that counts as warm-up."""

COARSE_STRIDE = 10
"""Steps from one logged loss to the next from which a log is coarse."""

MIN_SWING, HIGH_RATE = 0.25, 5e-3
"""Standard deviation of a loss that swings, as a fraction of its level, and a learning rate that
explains it: over ten times what Adam-like optimizers use."""

ACCURACIES = tuple(
    prefix + name
    for prefix in ("", "eval_")
    for name in ("accuracy", "token_accuracy", "preference_accuracy")
)

ACCURACY_GAIN = 0.03
"""Rise of an accuracy, as a fraction of its scale, that counts as learning."""


@dataclass
class LossNeverMoved(DetectorDefaults):
    """Evaluates `loss` over the whole run, at every completed block."""

    improvement: float = 0.03
    hidden: float = 0.1
    moved: float = 0.02
    points: int = 160
    coarse_points: int = 40

    signal = "loss"
    remedy = (
        "Inspect one batch as the model receives it, with its labels and chat template. Check "
        "that the parameters to be trained require a gradient and are in the optimizer, and that "
        "{learning rate} is not 0. If the loss was at its minimum from the start, stop the run."
    )

    def __post_init__(self) -> None:
        self._log_blocks = BlockMeans(VALUES_PER_GROUP)
        # Untrimmed: a mean of the loss itself, for losses over pairs and of both signs.
        self._blocks = BlockMeans(VALUES_PER_GROUP, is_trimmed=False)
        self._count = self._negative_count = 0
        self._first_loss = 0.0
        self._first_mean = 0.0
        self._start_step = 0
        self._first_step = 0
        self._rate = self._rate_at_last_block = 0.0
        self._max_steps = 0.0
        self._is_excluded = False
        self._is_pair_loss = False
        self._classes = 2.0
        self._has_moved = self._is_over = self._has_reference = False
        self._epochs = FirstAndLast(1)
        self._in_a_row = 0
        self._finding: Finding | None = None
        self._held_out = FirstAndLast()
        self._accuracies: dict[str, FirstAndLast] = {}

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one loss."""
        values = record.values
        self._max_steps = values.get("max_steps", self._max_steps)
        if record.event is TRAINING:
            # Its steps continue those of the training before.
            self._start_step = record.step
        self._is_excluded |= is_policy_gradient(record)
        if record.event is not STEP:
            self._is_pair_loss |= is_pair_loss(record)
            self._classes = class_count(record) or self._classes
        if self._is_excluded:
            return None
        if record.event is STOP:
            # A log that breaks off may be that of a longer run.
            is_finished = record.attributes.get("outcome") == "finished"
            self._is_over = is_finished or 2 * self._count >= self.points
            self._test_blocks(record.step)
            return self._finding
        self._add_other_signals(record)
        loss = values.get("loss", 0.0)
        return self._add_loss(record, loss) if loss != 0.0 and isfinite(loss) else None

    def _add_loss(self, record: Record, loss: float) -> DetectorOutput:
        """Add a loss, and test the blocks at the end of one."""
        values = record.values
        self._rate = values.get("learning_rate", self._rate)
        if not self._count:
            self._first_loss, self._first_step = loss, record.step
        self._count += 1
        self._negative_count += loss < 0.0
        if loss > 0.0:
            self._log_blocks.add(log(loss))
        if self._blocks.add(loss):
            self._is_excluded |= is_adversarial(values)
            self._is_pair_loss |= is_pair_loss(record)
            self._test_blocks(record.step)
        if self._finding is not None:
            return self._finding
        return CLEAR if self._has_moved else None

    def _add_other_signals(self, record: Record) -> None:
        values = record.values
        self._has_reference |= "kl_ref" in values
        if "epoch" in values:
            self._epochs.add(values["epoch"])
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
        if self._count == VALUES_PER_GROUP:
            self._first_mean = self._blocks.means[0]
            # At a rate that is far too high, only the first loss is that of guessing.
            for first, tolerance in ((self._first_mean, self.moved), (self._first_loss, 1e-4)):
                self._is_pair_loss |= abs(first - CHANCE_LOSS) < tolerance * CHANCE_LOSS
        passed = step - self._first_step
        is_too_early = is_warming_up or 10 * passed < self._max_steps
        # The log of a resumed run does not show its start.
        is_resumed = self._first_step - self._start_step > passed
        # Single steps may be those of a warm-up; evaluations are far apart.
        needed = self.points // 2 if self._is_over else self.points
        # A run of a few dozen steps need not have learned anything.
        is_sparse = self._is_over and passed >= 2 * (self._count - 1)
        if is_sparse or self._is_coarse(passed):
            needed = self.coarse_points
        if is_too_early or is_resumed or self._count < needed:
            return
        finding = self._compare_with_start()
        self._in_a_row = self._in_a_row + 1 if finding else 0
        self._finding = finding if self._in_a_row >= (1 if self._is_over else 2) else None

    def _is_coarse(self, passed: int) -> bool:
        """Whether a value stands for many steps, or evaluations show the same as the losses."""
        epochs = self._epochs.last[0] - self._epochs.first[0] if self._epochs.count else 0.0
        others = self._count - 1
        return passed >= COARSE_STRIDE * others or epochs >= others or self._is_held_out_flat()

    def _compare_with_start(self) -> Finding | None:
        """The finding that nothing was learned; None if that is not shown."""
        means, raw_means = self._log_blocks.means, self._blocks.means
        if are_signed(self._negative_count, self._count):
            # With a KL to a reference, a loss of both signs is a policy gradient.
            return None if self._has_reference else self._unmoved_finding(raw_means)
        if self._has_learned_otherwise() or len(means) < MIN_BLOCKS:
            return None
        self._has_moved |= fall_bounds(means, CONFIDENCE_Z)[0] > self.improvement
        growth = max(1.0, self._count / self.points) ** BOUND_GROWTH
        bound = min(self.hidden, self.improvement * growth)
        is_moving = (
            self._has_moved or self._fell_at_start(means) or falls_faster(means, CONFIDENCE_Z)
        )
        if not is_moving and self._is_flat(means, bound):
            return self._line_finding(means)
        latter = means[len(means) // 2 :]
        if self._is_chance(median(latter)) and self._is_flat(latter, self.improvement):
            return self._line_finding(latter)
        if self._is_pair_loss and (finding := self._compare_with_chance()):
            return finding
        swing = self._block_scatter(raw_means) * sqrt(self._blocks.values_per_block)
        is_swinging = swing > MIN_SWING * median(raw_means) and self._rate >= HIGH_RATE
        return self._unmoved_finding(raw_means) if is_swinging else None

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

    def _is_chance(self, log_level: float) -> bool:
        """Whether the model predicts all classes equally."""
        return abs(log_level - log(log(self._classes))) < self.moved

    def _is_flat(self, means: list[float], bound: float) -> bool:
        lower, upper = fall_bounds(means, EQUIVALENCE_Z)
        return max(upper, -lower) < bound

    @staticmethod
    def _block_scatter(means: list[float]) -> float:
        level = median(means)
        return median(abs(mean - level) for mean in means) * 1.4826

    def _fell_at_start(self, means: list[float], *, is_log: bool = True) -> bool:
        """Whether the first losses exceed the later level by more than their scatter."""
        if self._is_held_out_flat():
            return False
        # Blocks grow as neighbours merge; the first block had the smallest size.
        first_block_factor = sqrt(self._blocks.values_per_block / VALUES_PER_GROUP)
        bound = CONFIDENCE_Z * self._block_scatter(means) * first_block_factor
        first = log(max(self._first_mean, LEAST_LOSS)) if is_log else self._first_mean
        return first - median(means) > max(self.moved if is_log else 0.0, bound)

    def _compare_with_chance(self) -> Finding | None:
        means = self._blocks.means[len(self._blocks.means) // 2 :]
        level, error = fmean(means), stdev(means) / sqrt(len(means))
        tolerance = self.moved * CHANCE_LOSS
        is_falling = fall_bounds(means, CONFIDENCE_Z)[0] > tolerance
        lowest = level - student_quantile(CONFIDENCE_Z, len(means) - 1) * error
        if is_falling or lowest < CHANCE_LOSS - tolerance:
            return None
        count = len(means) * self._blocks.values_per_block
        return self._describe(
            f"Loss is not below ln 2 = 0.693, the loss of random guessing: its mean over the last "
            f"{count} logged values is {level:.3g}, with a standard error of {error:.2g}.",
            {"median_loss": median(means), "mean_loss_of_latter_half": level},
            count,
        )

    def _line_finding(self, means: list[float], *, is_log: bool = True) -> Finding:
        (fall, error), level = linear_fall(means), median(means)
        level = exp(level) if is_log else level
        is_chance = is_log and self._is_chance(log(level))
        count, form = len(means) * self._blocks.values_per_block, ".2%" if is_log else ".2g"
        return self._describe(
            f"Loss does not fall significantly: it is {level:.4g} and changed by {-fall:+{form}} "
            f"over {count} logged values, with a standard error of {error:{form}}."
            + (f" ln {self._classes:.0f} is the loss of random guessing." if is_chance else ""),
            {"median_loss": level, "loss_change_relative" if is_log else "loss_change": -fall},
            count,
        )

    def _unmoved_finding(self, means: list[float]) -> Finding | None:
        """The finding of a loss whose noise hides any level: its fall is not significant."""
        falls = linear_fall(means), linear_fall(ranks(means))
        is_fallen = any(fall > CONFIDENCE_Z * error for fall, error in falls)
        is_fallen |= self._fell_at_start(means, is_log=False)
        if is_fallen or self._has_learned_otherwise():
            return None
        return self._line_finding(means, is_log=False)

    def _describe(self, summary: str, evidence: dict[str, float], count: int) -> Finding:
        evidence["logged_values"] = float(count)
        return Finding(summary=summary, evidence=evidence, onset_step=self._first_step)
