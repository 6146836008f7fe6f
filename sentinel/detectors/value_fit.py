"""Unfit value model: the value model predicts returns worse than a constant.

Formula
    Finding  = after `warm` values, the median of the last 32 explained variances is below `least`

Units
    `least`: fraction of the variance of the returns, below 0 if a constant predicts better. `warm`:
    logged values.

Source
    Explained variance, 1 - Var(return - value) / Var(return), as logged by control libraries.
    Advantages from a misleading value model are noisier than plain returns, which is no immediate
    harm: info only.

Defaults
    At `least` 0 a constant is as good. `warm` 64: value models of healthy runs start below. Chosen
    by reasoning, not measured: no labelled log has the signal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.k_of_n import KOfN
from sentinel.stats.onset_tracker import OnsetTracker

MEDIAN_WINDOW = 32
"""Values in the evaluated median."""


@dataclass
class ValueFit:
    """Evaluates `explained_variance`."""

    least: float = 0.0
    warm: int = 64

    needs: ClassVar[frozenset[str]] = frozenset({"explained_variance"})
    signal: ClassVar[str] = "explained_variance"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Lengthen {value model warm-up}, and raise {value model learning rate}. Bound the "
        "rewards. Check that values and returns belong to the same steps."
    )

    def __post_init__(self) -> None:
        self._recent = KOfN(MEDIAN_WINDOW, below=True)
        self._count = 0
        self._onset = OnsetTracker()

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one explained variance."""
        explained = record.values["explained_variance"]
        if not isfinite(explained) or explained > 1.0:
            return None
        low = self._recent.add(explained, self.least)
        self._count += 1
        onset = self._onset.update(record.step, holds=explained < self.least)
        if self._count < self.warm:
            return None
        if not low:
            return CLEAR
        median = self._recent.median
        if median >= self.least:
            return CLEAR
        return Finding(
            summary=f"Explained variance of the value model is {median:.3g} (median of the last "
            "32), worse than a constant prediction.",
            evidence={"explained_variance": explained, "explained_variance_median_of_32": median},
            onset_step=onset,
        )
