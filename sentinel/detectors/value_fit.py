"""Value fit: the value model is worse than no value model.

Formula
    Finding  = after `warm` values, the median of the last 32 explained variances is below `least`

Units
    `least`: share of the returns' variance, below 0 where a constant would do better. `warm`:
    logged values.

Source
    Explained variance, 1 - Var(return - value) / Var(return), as the libraries for control log it.
    Advantages of a value model that misleads are noisier than plain returns, no more: it is shown,
    never paged.

Defaults
    `least` 0 is where a constant is as good. `warm` 64: value models of healthy runs begin below.
    Reasoned, not measured: no labelled log has the signal.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.k_of_n import KOfN

MEDIAN_WINDOW = 32
"""Values whose median is judged."""


@dataclass
class ValueFit:
    """Judges `explained_variance`."""

    least: float = 0.0
    warm: int = 64

    needs: ClassVar[frozenset[str]] = frozenset({"explained_variance"})
    signal: ClassVar[str] = "explained_variance"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Train the value model for some steps before the policy (verl trainer.critic_warmup), "
        "give it a learning rate of its own, bound the rewards, and check that values and returns "
        "are of the same steps. RLOO and GRPO need none."
    )

    def __post_init__(self) -> None:
        self._recent = KOfN(MEDIAN_WINDOW, below=True)
        self._count = 0
        self._onset_step: int | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Judge one explained variance."""
        explained = record.values["explained_variance"]
        if not isfinite(explained) or explained > 1.0:
            return None
        low = self._recent.add(explained, self.least)
        self._count += 1
        if explained >= self.least:
            self._onset_step = None
        elif self._onset_step is None:
            self._onset_step = record.step
        if self._count < self.warm:
            return None
        if not low:
            return Clear()
        middle = self._recent.median
        if middle >= self.least:
            return Clear()
        return Finding(
            summary=f"The value model explains {middle:.3g} of the returns' variance: a constant "
            "would do better.",
            evidence={"explained_variance": explained, "median_of_32": middle},
            onset_step=self._onset_step,
        )
