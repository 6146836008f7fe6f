"""KL drift: the policy has moved far from its reference, slowly, and is still away.

Formula
    Finding  = the median of the last 16 KL values is over `limit`, of a KL that is summed over a
               sequence over `limit` * `per_sequence`, and over twice the least median of 16 so far

Units
    `limit`: nats per token, as `kl_ref` is. `per_sequence`: a plain factor.

Source
    Gao et al. 2023 (arXiv:2210.10760): what a proxy reward gains with the root of the KL, the true
    one first gains and then loses. A high KL is a place, not yet a fault: it is shown, never paged.

Defaults
    Healthy public runs end at 0.035 to 0.1 nats per token, and `limit` 0.3 is three times that.
    `per_sequence` 50 is that of kl_blowup.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.signals.kl import get_kl_kind
from sentinel.stats.k_of_n import KOfN

MEDIAN_WINDOW = 16
"""Values whose median is judged."""


@dataclass
class KlDrift:
    """Judges `kl_ref`."""

    limit: float = 0.3
    per_sequence: float = 50.0

    needs: ClassVar[frozenset[str]] = frozenset({"kl_ref"})
    signal: ClassVar[str] = "kl_ref"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Compare the reward with one that was not trained on, or read samples. If they do not rise "
        "together, stop at the best checkpoint by that measure, or raise the KL coefficient."
    )

    def __post_init__(self) -> None:
        self._recent = KOfN(MEDIAN_WINDOW)
        self._lowest_level = inf
        self._onset_step: int | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Judge one KL value."""
        kl = record.values["kl_ref"]
        if not isfinite(kl):
            return None
        kind = get_kl_kind(record.attributes, "kl_ref")
        limit = self.limit * (self.per_sequence if kind.is_summed else 1.0)
        high = self._recent.add(kl, limit)
        if not self._recent.is_full:
            return None
        if not high and 2 * self._lowest_level <= limit:
            self._onset_step = None
            return Clear()
        level = self._recent.median
        self._lowest_level = min(self._lowest_level, level)
        bound = max(limit, 2 * self._lowest_level)
        if level <= bound:
            self._onset_step = None
            return Clear()
        if self._onset_step is None:
            self._onset_step = record.step
        return Finding(
            summary=f"KL to the reference has come to {level:.3g} {kind.unit}; most runs that do "
            f"well end below {limit / 3:.3g}.",
            evidence={"kl": kl, "median_of_16": level, "limit": bound},
            onset_step=self._onset_step,
        )
