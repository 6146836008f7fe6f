"""Loss divergence: the loss has risen above its level and does not recover.

Formula
    shifted  = a baseline without a trend has 8 nats of evidence that ln(loss) is above its recent
               level by more than ln `rise`, or by half of that if the loss has lost half of its
               fall and the held-out loss has risen as much above its lowest: data that is harder
               does not raise that; or, in the first 32 values, the last 5 are each over 1.5 times
               all before, or its cube if these are only two, its fifth power if there is only one
    both     = the held-out loss has risen by half over its lowest, and so has the median of the
               last 8 losses over the lowest such median, which lost a tenth of its fall: after a
               slow rise, which the recent level follows
    runaway  = the last 2 losses are each over `leap` times the largest before them or 0.1; or one
               is over the cube of `leap` times the largest of at least 8
    fallen   = the last 2 losses are negative and each over the cube of `leap` times the largest
               magnitude of the first 8 or 0.1: a term of the loss has no lower bound
    Finding  = shifted, both, runaway or fallen. A loss that is no higher than its level before has
               not shifted
    info     = the loss has lost less than a fiftieth of its fall, and less than a third of the fall
               of its logarithm: close to 0, the data of a batch alone do that
    critical = `settle` values after the shift or later, the median of the last 8 is no lower than
               that of the first 8 of the run, or is `severe` times the lowest such median, and the
               loss has not lost a third of its rise, and another one every 3 * `settle` values; or
               3 losses are runaway, the last 2 each over 10 times the one before; or one is over
               that cube
    A loss of both signs is compared itself, not its logarithm: it is shifted if there is evidence
    that it is above its recent level by more than `sigmas` standard deviations, it is above that by
    `rise` - 1 of its lowest level, and has lost half of its fall. For the loss of a
    policy gradient, whose level has no meaning, and for two networks trained against each other
    only runaway is evaluated; it is a warning. A value equal to the one before, such as a
    duplicated row, is ignored.

Units
    `rise`, `severe`, `leap`: plain factors of the loss. `settle`: logged losses.
    `sigmas`: standard deviations of a loss of both signs.

Source
    Evidence: sentinel.stats.baseline; the margin in place of a number of standard deviations is our
    own.

Defaults
    On 200 healthy synthetic runs (247,000 points, a third of which change to harder data) and on 77
    public logs with a loss there is no false alarm. A loss that doubles every 150, 40 or 8 steps is
    found in 100 of 100 runs each, after a median of 61, 19 and 7 points. `rise` 1.25 is far more
    than a change of data causes.
    `settle` 32 gives a spike time to recover before the finding is critical, and no loss recovers
    from `severe` 1.5. Of 8 classifiers with two changes to a harder task each, which are learned
    within 40 to 90 steps, none is critical; 4 that diverge are, after 35 steps as before. `leap`
    100 is beyond what data or a growing return cause in one logged value, and its cube beyond what
    any weights recover from. Of 200 losses of both
    signs that rise above their start 200 are found, after a median of 13 points; of 200 healthy
    ones (94,000 points, a third of which change to harder data), 200 total losses of PPO (64,000)
    and 200 losses of GRPO (63,000) none is.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from itertools import pairwise
from math import exp, inf, isfinite, log
from statistics import median

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.quantity_text import distinct_texts
from sentinel.model.record import Record
from sentinel.signals.loss_kind import (
    ALTERNATING_KEY,
    are_signed,
    is_adversarial,
    is_policy_gradient,
)
from sentinel.stats.baseline import level_baseline
from sentinel.stats.slight_rise import is_slight_rise

MIN_SIGMA, LEAST_LOSS = 0.02, 1e-9
"""Least noise of ln(loss), and least loss and noise of one of both signs."""

LEVEL_WINDOW = 8
"""Losses in the median that counts as the level."""

EARLY_WINDOW = 5
"""Consecutive high losses required early in a run."""

YOUNG_RISE = 1.5
"""Factor on the losses before that the first steps of a warm-up do not exceed five times in a row.
"""

EARLY_LOSSES = 32
"""First losses, whose baseline is that of few."""

EARLY_BASELINE = 3
"""Losses before them from which `YOUNG_RISE` suffices; fewer may be low by chance."""

MIN_LARGEST_LOSS = 0.1
"""Lower bound of the loss before a runaway: a first loss may be logged as 0."""

MIN_YOUNG_LOSS = 0.1
"""Lower bound of losses that diverge early: one that begins near 0 may be of both signs."""

TURN_SHARE = 1 / 3
"""Share of its rise that a loss which turns has lost after `settle` values."""

TURN_SETTLES = 3
"""Multiple of `settle` in which it must lose as much again."""

MIN_RISE_SHARE = 0.5
"""Share of `rise`, of its logarithm, by which a loss rises that lost half of what it had fallen."""

BOTH_LOST_SHARE = 0.1
"""Share of its fall that a loss has lost which rises slowly, together with the held-out loss."""

MIN_POLICY_VALUES = 16
"""Losses of a policy gradient before it is evaluated: the first ones may be near 0."""


@dataclass
class LossDivergence(DetectorDefaults):
    """Evaluates `loss` against its recent level and its start."""

    rise: float = 1.25
    severe: float = 1.5
    settle: int = 32
    sigmas: float = 4.0
    leap: float = 100.0

    steps_with = frozenset({"loss", "eval_loss", "reward"})
    signal = "loss"
    remedy = (
        "Resume from the checkpoint before the onset, and halve {learning rate}, lengthen "
        "{warm-up}, or lower {gradient clipping}. If the run was resumed, check that the "
        "optimizer's state was loaded. If the data or the task changed at the onset, inspect it, "
        'or declare it with `sentinel.mark("stage")` if it is on purpose.'
    )

    def __post_init__(self) -> None:
        self._baseline = level_baseline(1, log(self.rise), MIN_SIGMA, least=LEAST_LOSS)
        self._recent: deque[float] = deque(maxlen=LEVEL_WINDOW)
        self._recent_steps: deque[int] = deque(maxlen=LEVEL_WINDOW)
        self._initial_level: float | None = None
        self._lowest_level = inf
        self._lowest_step = 0
        self._level_count = 0
        """Losses that are part of levels."""
        self._has_no_level = False
        self._is_signed = False
        self._count = 0
        self._negative_count = 0
        self._shifted_count = 0
        self._highest_level = -inf
        """The highest level since the shift."""
        self._highest_before = -inf
        self._early_onset_step: int | None = None
        self._lowest_held_out = inf
        self._held_out_rise = 0.0
        """Logarithm of the latest held-out loss divided by the lowest."""
        self._is_slow_rise = False
        """Whether the recent level has followed the rise."""
        self._is_worse_held_out = False
        """Whether the held-out loss has risen by as much as a loss that lost half of its fall."""
        self._last_loss = inf
        self._largest = 0.0
        self._runaway: list[tuple[int, float]] = []
        self._largest_at_start = MIN_LARGEST_LOSS
        self._fallen_steps: list[int] = []
        """Steps of the latest losses in a row that are far below 0."""

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one loss."""
        self._add_held_out(record.values.get("eval_loss", 0.0))
        loss = record.values.get("loss")
        # Rewards of episodes may have rows of their own.
        self._has_no_level |= is_policy_gradient(record)
        if loss is None:
            return None
        if self._count < LEVEL_WINDOW or ALTERNATING_KEY in record.values:
            self._has_no_level |= is_adversarial(record.values)
        if not isfinite(loss) or loss == self._last_loss:
            return None
        self._last_loss = loss
        self._count += 1
        if (finding := self._find_extreme(loss, record.step)) is not None:
            return finding
        if self._has_no_level:
            return CLEAR if self._count >= MIN_POLICY_VALUES else None
        self._negative_count += loss < 0.0
        if not self._is_signed and are_signed(self._negative_count, self._count):
            self._start_signed()
        if not self._is_signed and loss <= 0.0:
            return None
        return self._evaluate_level(loss, record.step)

    def _find_extreme(self, loss: float, step: int) -> Finding | None:
        """The finding of a loss that is orders of magnitude away from those before."""
        self._update_runaway(abs(loss), step)
        if self._runaway and (len(self._runaway) >= 2 or self._is_beyond_recovery()):
            return self._runaway_finding(loss)
        is_unbounded = self._has_fallen_without_bound(loss, step) and not self._has_no_level
        return self._unbounded_finding(loss) if is_unbounded else None

    def _add_held_out(self, held_out: float) -> None:
        """Update the rise of the held-out loss, and the margin of the baseline with it."""
        if not 0.0 < held_out < inf:
            return
        self._lowest_held_out = min(self._lowest_held_out, held_out)
        half = MIN_RISE_SHARE * log(self.rise)
        self._held_out_rise = log(held_out / self._lowest_held_out)
        self._is_worse_held_out = self._held_out_rise > half
        if not self._is_signed:
            self._baseline.set_rise_margin(half if self._is_worse_held_out else log(self.rise))

    def _update_runaway(self, size: float, step: int) -> None:
        least = MIN_POLICY_VALUES if self._has_no_level else 2
        if self._count >= least and size > self.leap * max(self._largest, MIN_LARGEST_LOSS):
            self._runaway.append((step, size))
            return
        for _, single in self._runaway:
            self._largest = max(self._largest, single)
        self._runaway.clear()
        self._largest = max(self._largest, size)

    def _is_beyond_recovery(self) -> bool:
        """Whether a loss is so large that the weights that gave it are lost."""
        bound = self.leap**3 * max(self._largest, MIN_LARGEST_LOSS)
        is_known = self._count > LEVEL_WINDOW and not self._has_no_level
        return is_known and any(size > bound for _, size in self._runaway)

    def _has_fallen_without_bound(self, loss: float, step: int) -> bool:
        """Add a loss; whether two in a row are so far below 0 that nothing bounds them."""
        if self._count <= LEVEL_WINDOW:
            self._largest_at_start = max(self._largest_at_start, abs(loss))
        if -loss <= self.leap**3 * self._largest_at_start:
            self._fallen_steps.clear()
        elif len(self._fallen_steps) < 2:
            self._fallen_steps.append(step)
        return len(self._fallen_steps) == 2

    def _unbounded_finding(self, loss: float) -> Finding:
        first = self._largest_at_start
        return Finding(
            summary=f"Loss fell to {loss:.4g}, and its first {LEVEL_WINDOW} values were at most "
            f"{first:.4g} in magnitude: nothing bounds it from below.",
            evidence={"loss": loss, "largest_loss_at_start": first},
            onset_step=self._fallen_steps[0],
            remedy="Find the term of the loss that is negative and bound it: a term that is "
            "maximised, a difference of losses, or a log-likelihood whose scale shrinks to 0. "
            "Check the sign of each term.",
        )

    def _runaway_finding(self, loss: float) -> Finding:
        del self._runaway[1:-3]
        sizes = [size for _, size in self._runaway[-3:]]
        still_rises = all(after > 10 * before for before, after in pairwise(sizes))
        is_critical = len(sizes) >= 3 and still_rises and not self._has_no_level
        is_critical |= self._is_beyond_recovery()
        return Finding(
            summary=f"Loss rose to {loss:.4g}; before step {self._runaway[0][0]} it was at most "
            f"{self._largest:.4g} in magnitude.",
            evidence={"loss": loss, "largest_loss_before": self._largest},
            severity=Severity.CRITICAL if is_critical else None,
            onset_step=self._runaway[0][0],
        )

    def _start_signed(self) -> None:
        """Compare the loss itself from now on; the levels so far remain."""
        self._is_signed = True
        self._baseline = level_baseline(1, 0.0, LEAST_LOSS, margin_sigmas=self.sigmas)
        self._recent.clear()
        self._recent_steps.clear()
        self._early_onset_step, self._highest_before, self._shifted_count = None, -inf, 0
        self._level_count = 0
        if self._initial_level is not None:
            self._initial_level = exp(self._initial_level)
            self._lowest_level = exp(self._lowest_level)

    def _evaluate_level(self, loss: float, step: int) -> DetectorOutput:
        # Of a loss of both signs a trend is a part of the spread.
        self._baseline.update(loss, 0.0 if self._is_signed else self._count, step)
        if len(self._recent) >= EARLY_WINDOW and self._early_onset_step is None:
            self._highest_before = max(self._highest_before, self._recent[-EARLY_WINDOW])
        self._recent.append(loss if self._is_signed else log(loss))
        self._recent_steps.append(step)
        self._level_count += 1
        self._update_early()
        if self._level_count % LEVEL_WINDOW == 0:
            self._update_lowest()
        rise = self._baseline.rise
        is_open = rise.is_alarmed or self._early_onset_step is not None
        level = median(self._recent) if is_open else 0.0
        self._is_slow_rise = False
        is_shifted = is_open and self._has_shifted(level)
        if not is_shifted and self._held_out_rise > log(YOUNG_RISE):
            level = median(self._recent)
            is_shifted = self._is_slow_rise = self._has_risen_slowly(level)
        if not is_shifted:
            self._shifted_count = 0
            return CLEAR if rise.is_armed else None
        self._shifted_count += 1
        self._highest_level = max(level, self._highest_level) if self._shifted_count > 1 else level
        return self._finding(level)

    def _usual_level(self) -> float:
        """The level before the shift."""
        if self._is_slow_rise:
            return self._lowest_level
        usual = self._baseline.expected(self._baseline.rise)
        if usual is None or self._early_onset_step is not None:
            return self._highest_before
        return usual if self._is_signed else log(usual)

    def _has_risen_slowly(self, level: float) -> bool:
        """Whether the level is far above its lowest, whatever the recent level."""
        if self._is_signed or self._initial_level is None:
            return False
        lowest, start = exp(self._lowest_level), exp(self._initial_level)
        is_far = level - self._lowest_level > log(YOUNG_RISE)
        return is_far and exp(level) - lowest > BOTH_LOST_SHARE * (start - lowest)

    def _has_shifted(self, level: float) -> bool:
        """Whether a rise for which there is evidence is large enough."""
        if self._early_onset_step is not None:
            return True
        start, lowest, excess = self._initial_level, self._lowest_level, level - self._usual_level()
        if excess <= 0.0:
            return False
        has_lost_half = start is not None and level > (start + lowest) / 2
        if self._is_signed:
            return has_lost_half and excess > (self.rise - 1) * abs(lowest)
        return has_lost_half or excess > log(self.rise) or not self._is_worse_held_out

    def _update_lowest(self) -> None:
        """Update the levels with the last block of losses."""
        now = median(self._recent)
        if self._initial_level is None:
            # The start is what was before a divergence within the first values.
            now = now if self._early_onset_step is None else self._highest_before
            self._initial_level = now
        if now < self._lowest_level:
            self._lowest_level, self._lowest_step = now, self._recent_steps[-1]

    def _update_early(self) -> None:
        """Update the onset of a divergence that began before there was a good baseline."""
        is_young = self._level_count <= EARLY_LOSSES and not self._is_signed
        if self._early_onset_step is None and not is_young:
            return
        latest = list(self._recent)[-EARLY_WINDOW:]
        missing = max(0, EARLY_BASELINE + EARLY_WINDOW - self._count)
        least_rise = (1 + 2 * missing) * log(YOUNG_RISE)
        bound = max(self._highest_before + least_rise, log(MIN_YOUNG_LOSS))
        if self._early_onset_step is None and self._highest_before > -inf and min(latest) > bound:
            self._early_onset_step = self._recent_steps[-EARLY_WINDOW]
        elif median(latest) <= bound:
            self._early_onset_step = None

    def _is_recovering(self, level: float) -> bool:
        """Whether the loss falls again, as where a harder part of the data is learned."""
        share = TURN_SHARE * (1 + self._shifted_count // (TURN_SETTLES * self.settle))
        return level <= self._highest_level - share * (self._highest_level - self._usual_level())

    def _is_slight(self, level: float) -> bool:
        """Whether the rise is small next to what a positive loss had fallen before."""
        start, usual = self._initial_level, self._usual_level()
        if self._is_signed or start is None or self._early_onset_step is not None:
            return False
        return is_slight_rise(level, usual, start)

    def _finding(self, level: float) -> Finding:
        to_loss = float if self._is_signed else exp
        start, lowest, early_onset = self._initial_level, self._lowest_level, self._early_onset_step
        before = to_loss(self._usual_level())
        is_high = start is not None and level >= start
        is_severe = is_high or (not self._is_signed and level - lowest > log(self.severe))
        is_critical = is_severe and self._shifted_count > self.settle
        is_slight = self._is_slight(level)
        is_critical &= not self._is_recovering(level) and not is_slight
        onset = self._baseline.rise.onset if early_onset is None else early_onset
        evidence = {
            "loss": to_loss(self._recent[-1]),
            f"loss_median_of_{len(self._recent)}": to_loss(level),
            "usual_loss_before": before,
        }
        at_start = ""
        if start is not None:
            evidence["loss_lowest_median_of_8"] = to_loss(lowest)
            evidence["loss_at_start"] = to_loss(start)
            at_start = f"; at the start it was {to_loss(start):.4g}"
        usual, now = distinct_texts(before, to_loss(level), digits=4)
        return Finding(
            summary=f"Loss rose above its level of {usual} and has not recovered: the median "
            f"of the last {len(self._recent)} losses is {now}{at_start}.",
            evidence=evidence,
            severity=Severity.CRITICAL if is_critical else Severity.INFO if is_slight else None,
            onset_step=self._lowest_step if self._is_slow_rise else onset,
        )
