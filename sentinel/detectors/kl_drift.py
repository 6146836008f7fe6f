"""KL drift: the policy has slowly moved far from its reference.

Formula
    Finding  = the median of the last 16 KL values exceeds `limit` (for a KL summed over a sequence
               `limit` * `per_sequence`) and twice the lowest median of 16 so far

Units
    `limit`: nats per token, as `kl_ref`. `per_sequence`: plain factor.

Source
    Gao et al. 2023 (arXiv:2210.10760): while a proxy reward grows with the root of the KL, the true
    reward first rises and then falls. A high KL is a state, not yet a fault: info only.

Defaults
    Healthy public runs end at 0.035 to 0.1 nats per token, and `limit` 0.3 is three times that.
    `per_sequence` 50 is the factor of kl_blowup.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.signals.kl import get_kl_kind
from sentinel.stats.k_of_n import KOfN


@dataclass
class KlDrift:
    """Evaluates `kl_ref`."""

    limit: float = 0.3
    per_sequence: float = 50.0

    needs = frozenset({"kl_ref"})
    signal = "kl_ref"
    severity = Severity.INFO
    remedy = (
        "Compare the reward with a held-out measure of quality, or read samples. If they do not "
        "rise together, use the best checkpoint by that measure, or raise {KL coefficient}, to "
        "0.02 at least."
    )

    def __post_init__(self) -> None:
        self._recent = KOfN(16)
        self._lowest_level = inf
        self._onset_step: int | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one KL value."""
        kl = record.values["kl_ref"]
        if not isfinite(kl):
            return None
        kind = get_kl_kind(record.attributes, "kl_ref")
        limit = self.limit * (self.per_sequence if kind.is_summed else 1.0)
        is_high = self._recent.add(kl, limit, record.step)
        if is_high is None:
            return None
        if not is_high and 2 * self._lowest_level <= limit:
            self._onset_step = None
            return CLEAR
        level = self._recent.median
        self._lowest_level = min(self._lowest_level, level)
        bound = max(limit, 2 * self._lowest_level)
        if level <= bound:
            self._onset_step = None
            return CLEAR
        self._onset_step = record.step if self._onset_step is None else self._onset_step
        return Finding(
            summary=f"KL to the reference is {level:.3g} {kind.unit} (median of the last 16); "
            f"healthy runs end below {limit / 3:.3g}.",
            evidence={"kl_nats": kl, "kl_nats_median_of_16": level, "kl_nats_limit": bound},
            onset_step=self._onset_step,
        )
