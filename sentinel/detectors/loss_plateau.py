"""Loss plateau: the loss has stopped falling, and that is shown rather than not refuted.

Formula
    gone    = fall of the least-squares line through ln(loss) over the last quarter of the run (the
              last 40 % where a quarter is too short), on at most 64 block means; se its error
    Finding = gone + 2.2 se < `improvement` and gone - 2.2 se > -3 `improvement`, twice in a row,
              over at least `points` values; it ends when gone is over twice `improvement`
    warning = the learning rate is at least `rate_share` of its peak, or the loss has never been
              lower than `unmoved` below its first block; otherwise info
    A run with a reward is not judged: the loss of a policy gradient is near zero by construction.

Units
    `improvement`, `unmoved`: share of the loss, 0.01 is one per cent. `points`: logged losses.
    `rate_share`: share of 1. `floor`: as the loss; one below it, or negative, is not judged.

Source
    Two one-sided tests of equivalence, Schuirmann 1987. Counting evaluations without a new best,
    as early stopping does, calls a plateau whatever it cannot see through the noise.

Defaults
    On 200 healthy synthetic runs (221,000 points) one statement of some fifty was false, the true
    loss having fallen by over 2 % meanwhile; on 70 public logs with a loss no warning was. Of runs
    that stop learning early 45 % are found under `improvement` 0.01. `points` 64 is what six blocks
    of eight need, and a little more. `rate_share` 0.2 is where a decaying schedule has done most of
    its work, and `unmoved` 0.02 what a loss loses in its first batches where nothing is learnt.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf, isfinite, log
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.block_means import BlockMeans, linear_fall

CONFIDENCE_Z = 2.2
"""Standard errors either side: one false statement in seventy, if block means were independent."""

MIN_BLOCKS = 6
"""Block means a line is fitted to."""

WINDOW_SHARES = (0.25, 0.4)
"""Of the run so far, to look at."""


@dataclass
class LossPlateau:
    """Judges `loss` over the latest part of the whole run, at every completed block."""

    improvement: float = 0.01
    points: int = 64
    rate_share: float = 0.2
    unmoved: float = 0.02
    floor: float = 1e-6

    needs: ClassVar[frozenset[str]] = frozenset({"loss"})
    signal: ClassVar[str] = "loss"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "If the loss is where it should be, stop the run and save the time. If not, check that the "
        "right parameters train and the labels are not masked, then look at the learning rate and "
        "the data."
    )

    def __post_init__(self) -> None:
        self._blocks = BlockMeans()
        self._has_reward = False
        self._rate: float | None = None
        self._peak_rate = 0.0
        self._first_step: int | None = None
        self._in_a_row = 0
        self._was_tested = False
        self._flat_evidence: dict[str, float] = {}
        self._first_mean: float | None = None
        self._lowest = inf

    def update(self, record: Record) -> DetectorOutput:
        """Judge one loss."""
        # The loss of a policy gradient says nothing: it is near zero by construction.
        self._has_reward |= "reward" in record.values
        loss = record.values["loss"]
        if self._has_reward or not isfinite(loss) or loss < self.floor:
            return None
        self._update_rate(record.values.get("learning_rate"))
        if self._first_step is None:
            self._first_step = record.step
        if self._blocks.add(log(loss)):
            self._test_blocks(record.step)
        if self._flat_evidence:
            return self._finding()
        return Clear() if self._was_tested else None

    def _update_rate(self, rate: float | None) -> None:
        if rate is not None and isfinite(rate):
            self._rate = rate
            self._peak_rate = max(self._peak_rate, rate)

    def _test_blocks(self, step: int) -> None:
        """Test again, now that there is another block."""
        latest = self._blocks.means[-1]
        if self._first_mean is None:
            self._first_mean = latest
        self._lowest = min(self._lowest, latest)
        windows = [window for share in WINDOW_SHARES if (window := self._window(share))]
        falls = [linear_fall(window) for window in windows]
        self._was_tested |= bool(windows)
        flat = next((at for at, fallen in enumerate(falls) if self._is_flat(*fallen)), None)
        if flat is not None:
            self._in_a_row += 1
            if self._in_a_row >= 2:
                self._set_flat(windows[flat], falls[flat], step)
        elif not self._flat_evidence or any(gone > 2 * self.improvement for gone, _ in falls):
            self._in_a_row, self._flat_evidence = 0, {}

    def _window(self, share: float) -> list[float]:
        """Latest `share` of the block means; empty where that is too little to judge."""
        count = int(share * len(self._blocks.means))
        if count < MIN_BLOCKS or count * self._blocks.values_per_block < self.points:
            return []
        return self._blocks.means[-count:]

    def _is_flat(self, improvement: float, error: float) -> bool:
        least, most = improvement - CONFIDENCE_Z * error, improvement + CONFIDENCE_Z * error
        return most < self.improvement and least > -3 * self.improvement

    def _set_flat(
        self, window: list[float], fall_and_error: tuple[float, float], step: int
    ) -> None:
        gone, error = fall_and_error
        first = self._first_step or 0
        since = step - (step - first) * len(window) / len(self._blocks.means)
        self._flat_evidence = {
            "level": exp(sum(window) / len(window)),
            "improvement": gone,
            "error": error,
            "points": float(len(window) * self._blocks.values_per_block),
            "since_step": self._flat_evidence.get("since_step", float(int(since))),
        }

    def _finding(self) -> Finding:
        flat = self._flat_evidence
        trains = self._rate is not None and self._rate >= self.rate_share * self._peak_rate
        never = self._first_mean is not None and self._first_mean - self._lowest < self.unmoved
        return Finding(
            summary=f"Loss stands at {flat['level']:.4g}: over the last {flat['points']:.0f} "
            f"points it improved by {flat['improvement']:.2%}.",
            evidence=dict(flat),
            severity=None if trains or never else Severity.INFO,
            onset_step=int(flat["since_step"]),
        )
