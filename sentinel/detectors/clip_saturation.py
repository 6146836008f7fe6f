"""Clip saturation: most of what was sampled no longer teaches, because its ratio is clipped.

Formula
    Finding  = the median of the last 16 clip fractions is at least `much`
    warning  = it is at least `most`; otherwise info

Units
    `much`, `most`: share of 1, of the tokens of a step.

Source
    Schulman et al. 2017 (arXiv:1707.06347): a clipped token has no gradient. Many of them mean that
    the policy has left the one that sampled: too many epochs, or steps too large, for one batch.

Defaults
    Healthy runs on language clip 0.001 to 0.1, and control tasks up to 0.3, from where it is shown:
    `much` 0.3. Over `most` 0.6 more is thrown away than is used. On 20 public logs with a clip
    fraction there is no finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.stats.k_of_n import KOfN

MEDIAN_WINDOW = 16
"""Values whose median is judged."""


@dataclass
class ClipSaturation:
    """Judges `clip_fraction`."""

    much: float = 0.3
    most: float = 0.6

    needs: ClassVar[frozenset[str]] = frozenset({"clip_fraction"})
    signal: ClassVar[str] = "clip_fraction"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Take fewer passes over a batch (TRL num_iterations, verl "
        "actor.ppo_epochs, stable-baselines3 n_epochs), halve the learning rate, or sample more "
        "often. If the first pass is clipped already, the engine that samples is not in step."
    )

    def __post_init__(self) -> None:
        self._recent = KOfN(MEDIAN_WINDOW)
        self._onset_step: int | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Judge one clip fraction."""
        clipped = record.values["clip_fraction"]
        if not 0.0 <= clipped <= 1.0:
            return None
        high = self._recent.add(clipped, self.much)
        if clipped < self.much:
            self._onset_step = None
        elif self._onset_step is None:
            self._onset_step = record.step
        if not high:
            return Clear() if self._recent.is_full else None
        middle = self._recent.median
        if middle < self.much:
            return Clear()
        told = {"clip_fraction": clipped, "median_of_16": middle}
        if "kl_old" in record.values:
            told["kl_old"] = record.values["kl_old"]
        return Finding(
            summary=f"{middle:.0%} of the tokens are clipped, and teach nothing.",
            evidence=told,
            severity=Severity.WARNING if middle >= self.most else None,
            onset_step=self._onset_step,
        )
