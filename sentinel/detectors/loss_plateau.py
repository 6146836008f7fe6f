"""Loss plateau: the loss has stopped falling, shown by a test of equivalence.

Formula
    fall    = fall of the least-squares line through ln(loss) over the last quarter of the run, or
              the last 40, 55 or 70 %, on at most 64 block means; se its standard error, z the
              quantile 2.2 of Student's t for that many blocks
    Finding = fall + z se < `improvement`, fall - z se > -3 `improvement`, and fall - z se <
              `improvement` / 4, since a loss that is shown to fall has not stopped; twice in a row,
              over at least `points` values; it ends once fall exceeds twice `improvement`
    info    = a run that has converged, or nearly: the default
    warning = the level is `above` times the lowest of all blocks, or has never been lower than
              `unmoved` below the first block and does not fall faster in the latter half of the
              run, or is that of guessing between two alternatives in a loss over pairs; only if
              over 20 % of the steps remain or, where the length of the run is not known, the
              learning rate is at least `rate_share` of its peak
    A run with a reward is not evaluated: the loss of a policy gradient is near zero by
    construction. Nor are two networks trained against each other: neither loss falls at their
    equilibrium.

Units
    `improvement`, `unmoved`: fraction of the loss, 0.01 is one per cent. `points`: logged losses.
    `above`: plain factor. `rate_share`: fraction of 1. A loss below 1e-6 is not evaluated.

Source
    Two one-sided tests of equivalence, Schuirmann 1987. Counting evaluations without a new best, as
    early stopping does, reports a plateau whenever noise hides an improvement.

Defaults
    On 200 healthy synthetic runs (233,000 points) none of 87 findings was false, in the sense that
    the true loss had fallen by over 2 % meanwhile, and none was a warning. Of 200 runs that stop
    learning early 142 are found, after a median of 140 points, one of them falsely; they stall at
    their best level, so the finding is info. `improvement` 0.01 can be shown in 64 to 500 values
    under common noise. `points` 64 is slightly more than six blocks of eight. `above` 1.25 is far
    more than a change of data causes. At `rate_share` 0.2 a decaying schedule has done most of its
    work, and `unmoved` 0.02 is the fall of a loss in its first batches if nothing is learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, isfinite, log

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.record import METADATA, START, STEP, Record
from sentinel.signals.loss_kind import (
    CHANCE_LOSS,
    is_adversarial,
    is_pair_loss,
    is_policy_gradient,
)
from sentinel.stats.block_means import BlockMeans, falls_faster, linear_fall, student_quantile

CONFIDENCE_Z = 2.2
"""Standard errors on either side: one false result in 70 if block means were independent."""

FLOOR = 1e-6
"""Loss below which its logarithm means nothing."""

MIN_BLOCKS = 6
"""Minimum number of block means for a line."""

WINDOW_SHARES = (0.25, 0.4, 0.55, 0.7)
"""Fractions of the run so far that are tested."""

SHOWN_EVIDENCE = ("mean_loss", "loss_change_relative", "logged_values", "flat_since_step")

METADATA_EVENTS = frozenset({START, METADATA})

REMAINING_SHARE = 0.2
"""Share of the planned steps that must remain for a warning."""


@dataclass
class LossPlateau(DetectorDefaults):
    """Evaluates `loss` over the latest part of the run, at every completed block."""

    improvement: float = 0.01
    points: int = 64
    rate_share: float = 0.2
    above: float = 1.25
    unmoved: float = 0.02

    events = METADATA_EVENTS | {STEP}
    steps_with = frozenset({"loss"})
    signal = "loss"
    remedy = (
        "If the loss is low enough, stop the run. Otherwise check that the right parameters are "
        "trained and that the labels are not masked. Then check {learning rate} and the data."
    )

    def __post_init__(self) -> None:
        self._blocks = BlockMeans()
        self._is_excluded = False
        self._is_pair_loss = False
        self._max_steps = 0.0
        self._rate: float | None = None
        self._peak_rate = 0.0
        self._first_step: int | None = None
        self._in_a_row = 0
        self._was_tested = False
        self._flat_evidence: dict[str, float] = {}
        self._first_mean: float | None = None
        self._lowest = inf

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one loss."""
        values = record.values
        if record.event in METADATA_EVENTS:
            self._is_pair_loss |= is_pair_loss(record)
        elif record.event is not STEP or "loss" not in values:
            return None
        self._max_steps = values.get("max_steps", self._max_steps)
        self._is_excluded |= is_policy_gradient(record)
        loss = values.get("loss", 0.0)
        if self._is_excluded or not isfinite(loss) or loss < FLOOR:
            return None
        self._update_rate(values.get("learning_rate"))
        if self._first_step is None:
            self._first_step = record.step
        if self._blocks.add(log(loss)):
            self._is_excluded |= is_adversarial(values)
            self._is_pair_loss |= is_pair_loss(record)
            self._test_blocks(record.step)
        if self._flat_evidence:
            return self._finding(record.step)
        return CLEAR if self._was_tested else None

    def _update_rate(self, rate: float | None) -> None:
        if rate is not None and isfinite(rate):
            self._rate = rate
            self._peak_rate = max(self._peak_rate, rate)

    def _test_blocks(self, step: int) -> None:
        """Repeat the test after a new block."""
        latest = self._blocks.means[-1]
        if self._first_mean is None:
            self._first_mean = latest
        self._lowest = min(self._lowest, latest)
        windows = [window for share in WINDOW_SHARES if (window := self._window(share))]
        falls = [linear_fall(window) for window in windows]
        self._was_tested |= bool(windows)
        flat = next(
            (i for i, fall in enumerate(falls) if self._is_flat(*fall, len(windows[i]))), None
        )
        if flat is not None:
            self._in_a_row += 1
            if self._in_a_row >= 2:
                self._set_flat(windows[flat], falls[flat], step)
        elif not self._flat_evidence or any(fall > 2 * self.improvement for fall, _ in falls):
            self._in_a_row, self._flat_evidence = 0, {}

    def _window(self, share: float) -> list[float]:
        """Latest `share` of the block means; empty if that is too short to test."""
        count = int(share * len(self._blocks.means))
        if count < MIN_BLOCKS or count * self._blocks.values_per_block < self.points:
            return []
        return self._blocks.means[-count:]

    def _is_flat(self, fall: float, error: float, count: int) -> bool:
        uncertainty = student_quantile(CONFIDENCE_Z, count - 2) * error
        lower, upper = fall - uncertainty, fall + uncertainty
        return upper < self.improvement and -3 * self.improvement < lower < self.improvement / 4

    def _set_flat(
        self, window: list[float], fall_and_error: tuple[float, float], step: int
    ) -> None:
        fall, error = fall_and_error
        first = self._first_step or 0
        since = step - (step - first) * len(window) / len(self._blocks.means)
        self._flat_evidence = {
            "mean_loss": exp(sum(window) / len(window)),
            "loss_change_relative": -fall,
            "standard_error_of_change_relative": error,
            "logged_values": float(len(window) * self._blocks.values_per_block),
            "flat_since_step": self._flat_evidence.get("flat_since_step", float(int(since))),
        }

    def _finding(self, step: int) -> Finding:
        flat = self._flat_evidence
        level, reason = flat["mean_loss"], self._reason_to_warn(flat["mean_loss"])
        return Finding(
            summary=f"Loss stays at {level:.4g}: over the last {flat['logged_values']:.0f} logged "
            f"values it changed by {flat['loss_change_relative']:+.2%}, with a standard error of "
            f"{flat['standard_error_of_change_relative']:.2%}{reason}.",
            evidence={
                **{name: flat[name] for name in SHOWN_EVIDENCE},
                "lowest_mean_loss": exp(self._lowest),
            },
            severity=None if reason and self._has_time_left(step) else Severity.INFO,
            onset_step=int(flat["flat_since_step"]),
        )

    def _reason_to_warn(self, level: float) -> str:
        """Why the loss should be lower; empty if it may have converged."""
        if log(level) - self._lowest > log(self.above):
            return f"; it was {exp(self._lowest):.4g} before"
        is_unmoved = self._first_mean is not None and self._first_mean - self._lowest < self.unmoved
        if is_unmoved and not falls_faster(self._blocks.means, CONFIDENCE_Z):
            return f"; it started at {exp(self._first_mean or 0.0):.4g}"
        if self._is_pair_loss and level > (1 - self.unmoved) * CHANCE_LOSS:
            return "; ln 2 = 0.693 is the loss of random guessing"
        return ""

    def _has_time_left(self, step: int) -> bool:
        if self._max_steps > 0.0:
            return step < (1 - REMAINING_SHARE) * self._max_steps
        return self._rate is None or self._rate >= self.rate_share * self._peak_rate
