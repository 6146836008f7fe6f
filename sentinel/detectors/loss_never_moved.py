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

from sentinel.model.finding import Calm, Finding, Opinion, Severity
from sentinel.model.record import Record
from sentinel.stats.block_means import GROUP, BlockMeans, fall

SURE = 2.2
"""Standard errors either side: one false statement in seventy, if block means were independent."""

FEWEST = 8
"""Block means a line is fitted to."""

WARMING = 1.01
"""A learning rate that grew by over this factor from one block to the next is in its warm-up."""

COIN = log(2.0)


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
        self._first: float | None = None
        self._first_step = 0
        self._rate = 0.0
        self._block_rate = 0.0
        self._most_steps = 0.0
        self._rewarded = False
        self._moved = False
        self._in_a_row = 0
        self._flat: dict[str, float] = {}

    def update(self, record: Record) -> Opinion:
        """Judge one loss."""
        values = record.values
        self._most_steps = values.get("max_steps", self._most_steps)
        loss = values.get("loss", 0.0)
        # The loss of a policy gradient says nothing: it is near zero by construction.
        self._rewarded |= "reward" in values
        if self._rewarded or not 0.0 < loss < inf:
            return None
        self._rate = values.get("learning_rate", self._rate)
        if not self._count:
            self._first_step = record.step
        self._count += 1
        if self._blocks.add(log(loss)):
            self._look(record.step)
        if self._flat:
            return self._finding()
        return Calm() if self._moved else None

    def _look(self, step: int) -> None:
        """Test again, now that there is another block."""
        means = self._blocks.means
        warming = self._rate > WARMING * self._block_rate > 0.0
        self._block_rate = self._rate
        if self._first is None:
            self._first = means[0]
        enough = self._count >= self.points and len(means) >= FEWEST
        if not enough or warming or 10 * (step - self._first_step) < self._most_steps:
            return
        window = means if self._never(means) else means[len(means) // 2 :]
        flat = window is means or self._tosses_a_coin(window)
        self._in_a_row = self._in_a_row + 1 if flat else 0
        if self._in_a_row >= 2:
            gone, error = fall(window)
            self._flat = {
                "level": exp(median(window)),
                "improvement": gone,
                "error": error,
                "points": float(len(window) * self._blocks.length),
            }
        elif not flat:
            self._flat = {}

    def _is_flat(self, gone: float, error: float) -> bool:
        return abs(gone) + SURE * error < self.improvement

    def _never(self, means: list[float]) -> bool:
        gone, error = fall(means)
        self._moved |= gone - SURE * error > 2 * self.improvement
        return not self._moved and self._is_flat(gone, error) and not self._fell_at_once(means)

    def _tosses_a_coin(self, means: list[float]) -> bool:
        return abs(median(means) - log(COIN)) < self.moved and self._is_flat(*fall(means))

    def _fell_at_once(self, means: list[float]) -> bool:
        """Whether the first values were higher than what came after, by more than scatter."""
        level = median(means)
        # Blocks get longer as neighbours merge; the first one was of the shortest.
        per_first = sqrt(self._blocks.length / GROUP)
        scatter = median(abs(mean - level) for mean in means) * 1.4826 * per_first
        return (self._first or level) - level > max(self.moved, SURE * scatter)

    def _finding(self) -> Finding:
        flat = self._flat
        coin = " That is ln 2, what tossing a coin costs." * (abs(flat["level"] - COIN) < 0.02)
        return Finding(
            summary=f"Loss stands at {flat['level']:.4g}: over {flat['points']:.0f} points it "
            f"improved by {flat['improvement']:.2%}.{coin}",
            evidence=dict(flat),
            onset_step=self._first_step,
        )
