"""Loss never moved: from its first values on the loss has not fallen, and that is shown.

Formula
    gone     = fall of the least-squares line through ln(loss), on at most 64 block means of the
               run; se its error; flat is |gone| + 2.2 se < `improvement`
    never    = the whole run is flat, and its first block of 8 is above the level by less than
               `moved`, or than 2.2 times what single blocks scatter by
    coin     = the latter half of the run is flat, and its level is ln 2 to within `moved`
    Finding  = never or coin, twice in a row, over at least `points` values and a tenth of the run
               where its length is known
    A run whose learning rate still rises is not judged, nor one with a reward. One whose loss has
    fallen by 2 * `improvement` has moved, and only the coin is looked at.

Units
    `improvement`, `moved`: share of the loss, 0.02 is two per cent. `points`: logged losses.

Source
    Two one-sided tests of equivalence, Schuirmann 1987. Where a choice between two answers is
    learnt, ln 2 = 0.693 is the loss of a model that tosses a coin.

Defaults
    On 100 healthy synthetic runs (123,000 points) they give no false alarm, and on 105 public logs
    none; of five logs that people said had never moved, all are found, four of which had come to
    ln 2 and learnt nothing else. Of 147 runs that learn nothing 144 are found, by the median after
    168 points. `improvement` 0.03 is what the noise of common losses lets be shown in `points` 160;
    `moved` 0.02 is what a loss loses in its first batches where nothing is learnt.
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
"""Standard errors either side: one false statement in seventy, if block means were independent."""

MIN_BLOCKS = 8
"""Block means a line is fitted to."""

WARMUP_GROWTH = 1.01
"""A learning rate that grew by over this factor from one block to the next is in its warm-up."""

COIN_FLIP_LOSS = log(2.0)


@dataclass
class LossNeverMoved:
    """Judges `loss` over the whole run, at every completed block."""

    improvement: float = 0.03
    moved: float = 0.02
    points: int = 160

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Look at one batch as the model gets it: labels and the chat template. Check that the "
        "parameters that should train require a gradient and are in the optimizer, and that the "
        "learning rate is not 0. If the loss was at its floor from the start, nothing is to be won."
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
        """Judge one loss."""
        values = record.values
        self._max_steps = values.get("max_steps", self._max_steps)
        loss = values.get("loss", 0.0)
        # The loss of a policy gradient says nothing: it is near zero by construction.
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
        """Test again, now that there is another block."""
        means = self._blocks.means
        warming = self._rate > WARMUP_GROWTH * self._rate_at_last_block > 0.0
        self._rate_at_last_block = self._rate
        if self._first_mean is None:
            self._first_mean = means[0]
        enough = self._count >= self.points and len(means) >= MIN_BLOCKS
        if not enough or warming or 10 * (step - self._first_step) < self._max_steps:
            return
        window = means if self._never_moved(means) else means[len(means) // 2 :]
        flat = window is means or self._is_coin_flip_loss(window)
        self._in_a_row = self._in_a_row + 1 if flat else 0
        if self._in_a_row >= 2:
            gone, error = linear_fall(window)
            self._flat_evidence = {
                "level": exp(median(window)),
                "improvement": gone,
                "error": error,
                "points": float(len(window) * self._blocks.values_per_block),
            }
        elif not flat:
            self._flat_evidence = {}

    def _is_flat(self, improvement: float, error: float) -> bool:
        return abs(improvement) + CONFIDENCE_Z * error < self.improvement

    def _never_moved(self, means: list[float]) -> bool:
        gone, error = linear_fall(means)
        self._has_moved |= gone - CONFIDENCE_Z * error > 2 * self.improvement
        return (
            not self._has_moved and self._is_flat(gone, error) and not self._dropped_at_start(means)
        )

    def _is_coin_flip_loss(self, means: list[float]) -> bool:
        return abs(median(means) - log(COIN_FLIP_LOSS)) < self.moved and self._is_flat(
            *linear_fall(means)
        )

    def _dropped_at_start(self, means: list[float]) -> bool:
        """Whether the first values were higher than what came after, by more than scatter."""
        level = median(means)
        # Blocks get longer as neighbours merge; the first one was of the shortest.
        per_first = sqrt(self._blocks.values_per_block / VALUES_PER_GROUP)
        scatter = median(abs(mean - level) for mean in means) * 1.4826 * per_first
        return (self._first_mean or level) - level > max(self.moved, CONFIDENCE_Z * scatter)

    def _finding(self) -> Finding:
        flat = self._flat_evidence
        coin = " That is ln 2, what tossing a coin costs." * (
            abs(flat["level"] - COIN_FLIP_LOSS) < 0.02
        )
        return Finding(
            summary=f"Loss stands at {flat['level']:.4g}: over {flat['points']:.0f} points it "
            f"improved by {flat['improvement']:.2%}.{coin}",
            evidence=dict(flat),
            onset_step=self._first_step,
        )
