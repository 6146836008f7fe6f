"""Gradient explosion: the gradient norm has risen far above its level and stays there.

Formula
    Finding  = a margin CUSUM finds ln(norm) above its recent level by more than ln `ratio`, and the
               median of the last 8 has been higher than ever before;
               or, in the first 32 values, the last 3 are higher than all before and their median
               is `young_ratio` times that of the first 5
    info     = a single norm is `young_ratio` times the recent median and exceeds it by `sigmas`
               standard deviations of its logarithm
    Norms of 0, of steps without a learning signal, are ignored.

Units
    The unit of `grad_norm` is irrelevant. `ratio`, `young_ratio`: plain factors. `sigmas`: standard
    deviations. The norm is that before clipping, so clipping does not lower it.

Source
    CUSUM: Page, Biometrika 1954. Most incidents of KL and gradient in real logs recover by
    themselves, usually after a single step, so a single norm is info only.

Defaults
    On 200 healthy synthetic runs (232,000 points, single norms up to 60 times too high) and on 105
    public logs there is no false warning. A norm that rises 20-fold in 60 steps, 100-fold in 20 or
    1000-fold in 5 is found in 86, 100 and 100 of 100 runs, after a median of 36, 12 and 5 points.
    Heavy-tailed norms do not reach `ratio` 3 together with a new maximum; `young_ratio` 10 is a
    common definition of an explosion, and `sigmas` 6 excludes norms that vary strongly.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import exp, inf, log
from statistics import median
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.margin_cusum import MarginCusum
from sentinel.stats.new_extreme import NewExtreme

BASELINE_NORMS = 5
"""First norms, whose median is the reference early in a run."""

RECENT_NORMS = 3
"""Consecutive high norms required early in a run."""


@dataclass
class GradExplosion:
    """Evaluates `grad_norm` against its recent level."""

    ratio: float = 3.0
    young_ratio: float = 10.0
    sigmas: float = 6.0

    needs: ClassVar[frozenset[str]] = frozenset({"grad_norm"})
    signal: ClassVar[str] = "grad_norm"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Resume from the checkpoint before the onset with a lower learning rate or stronger "
        "gradient clipping (max_grad_norm, gradient_clipping). Inspect the batch of the onset; in "
        "reinforcement learning also the mismatch of sampling and training engine."
    )

    def __post_init__(self) -> None:
        self._cusum = MarginCusum(sign=1, min_sigma=0.1)
        self._margin, self._single_margin = log(self.ratio), log(self.young_ratio)
        self._extremes = NewExtreme()
        self._first_norms: list[float] = []
        self._recent: deque[float] = deque(maxlen=RECENT_NORMS)
        self._recent_steps: deque[int] = deque(maxlen=RECENT_NORMS)
        self._count = 0
        self._highest_before = -inf
        self._is_shifted = False
        self._early_onset_step: int | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one norm."""
        norm = record.values["grad_norm"]
        if not 0.0 < norm < inf:
            return None
        size = log(norm)
        usual, is_outlier = 0.0, False
        # Within the margin the norm neither has shifted nor is an outlier.
        if self._early_onset_step is not None or not self._cusum.is_within_margin(
            size, self._single_margin
        ):
            usual, is_outlier = self._compare_with_level(size)
        self._extremes.add(size)
        self._count += 1
        if len(self._recent) == RECENT_NORMS:
            self._highest_before = max(self._highest_before, self._recent[0])
        self._recent.append(size)
        self._recent_steps.append(record.step)
        self._cusum.update(size, self._margin, record.step)
        # After a while the new level is no new extreme any more, but still shifted.
        self._is_shifted = self._cusum.is_alarmed and (self._is_shifted or self._extremes.is_new)
        if self._is_shifted or self._is_early_explosion():
            return self._finding(norm, median(self._recent), usual)
        if is_outlier:
            return Finding(
                summary=f"A single gradient norm of {norm:.3g}; the recent median is "
                f"{exp(usual):.3g}.",
                evidence={"grad_norm": norm, "grad_norm_recent_median": exp(usual)},
                severity=Severity.INFO,
            )
        return Clear() if self._cusum.is_armed else None

    def _compare_with_level(self, log_norm: float) -> tuple[float, bool]:
        """The recent median of ln(norm), and whether this norm is an outlier."""
        if not self._cusum.is_armed:
            if len(self._first_norms) < BASELINE_NORMS:
                self._first_norms.append(log_norm)
            return median(self._first_norms), False
        usual = self._cusum.baseline_median
        excess = log_norm - usual
        return usual, excess > self._single_margin and excess > self.sigmas * self._cusum.sigma

    def _is_early_explosion(self) -> bool:
        """Whether the run has an explosion that began before there was a baseline."""
        if self._count < BASELINE_NORMS + RECENT_NORMS or (
            self._cusum.is_armed and self._early_onset_step is None
        ):
            return False
        bound = median(self._first_norms) + log(self.young_ratio)
        if median(self._recent) <= bound:
            self._early_onset_step = None
        elif self._early_onset_step is None and min(self._recent) > self._highest_before:
            self._early_onset_step = self._recent_steps[0]
        return self._early_onset_step is not None

    def _finding(self, norm: float, level: float, usual: float) -> Finding:
        return Finding(
            summary=f"Gradient norm rose above its level of {exp(usual):.3g}; the median of the "
            f"last 3 norms is {exp(level):.3g}.",
            evidence={
                "grad_norm": norm,
                "grad_norm_median_of_3": exp(level),
                "grad_norm_level_before": exp(usual),
            },
            onset_step=self._cusum.onset if self._is_shifted else self._early_onset_step,
        )
