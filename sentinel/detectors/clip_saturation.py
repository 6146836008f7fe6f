"""Clip saturation: most sampled tokens contribute no gradient because their ratio is clipped.

Formula
    Finding  = the median of the last 16 clip fractions is at least `much`
    warning  = the median is at least `most`; otherwise info

Units
    `much`, `most`: fraction of the tokens of a step.

Source
    Schulman et al. 2017 (arXiv:1707.06347): a clipped token has no gradient. Many clipped tokens
    mean that the policy has moved away from the policy that sampled them: too many epochs per
    batch, or steps that are too large.

Defaults
    Healthy language runs clip 0.001 to 0.1, and control tasks up to 0.3, where `much` begins. Above
    `most` 0.6 more tokens are discarded than used. There is no finding on 20 public logs with a
    clip fraction.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.k_of_n import KOfN


@dataclass
class ClipSaturation:
    """Evaluates `clip_fraction`."""

    much: float = 0.3
    most: float = 0.6

    needs = frozenset({"clip_fraction"})
    signal = "clip_fraction"
    severity = Severity.INFO
    remedy = (
        "Lower {number of updates per batch}, or halve {learning rate}. If tokens are clipped in "
        "the first epoch already, check that the sampling engine gets the newest weights."
    )

    def __post_init__(self) -> None:
        self._recent = KOfN(16)

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one clip fraction."""
        clipped = record.values["clip_fraction"]
        if not 0.0 <= clipped <= 1.0:
            return None
        is_high = self._recent.add(clipped, self.much, record.step)
        if not is_high:
            return None if is_high is None else CLEAR
        median = self._recent.median
        evidence = {"clip_fraction": clipped, "clip_fraction_median_of_16": median}
        if "kl_old" in record.values:
            evidence["kl_old_nats"] = record.values["kl_old"]
        return Finding(
            summary=f"{median:.0%} of the tokens are clipped and contribute no gradient.",
            evidence=evidence,
            severity=Severity.WARNING if median >= self.most else None,
            onset_step=self._recent.onset,
        )
