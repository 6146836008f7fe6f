"""Negative KL: the KL estimate stays below 0, so it is not measured on the policy's own samples.

Formula
    Finding  = the median of the last 32 KL values is below -`limit` (for a KL summed over a
               sequence -`limit` * `per_sequence`), and further below 0 than the standard deviation
               of the values

Units
    `limit`: nats per token, as `kl_ref`. `per_sequence`: plain factor.

Source
    The first-order estimator of a single token may be negative, its mean over text sampled by the
    policy itself may not (Schulman, "Approximating KL divergence", 2020). If it stays below 0, the
    text was sampled by another policy or with other settings than it is scored with: top-k or a
    temperature, padding that counts as text, active dropout (trl#351, trl#1857, trl#1161).

Defaults
    On 15 public logs with such a KL there was no warning; their lowest median is -0.01 nats per
    token. `limit` 0.05 times `per_sequence` 20 is the -1 nat per sequence that maintainers of TRL
    call tolerable.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope
from sentinel.model.record import Record
from sentinel.signals.kl import get_kl_kind
from sentinel.stats.k_of_n import KOfN


@dataclass
class KlNegative(DetectorDefaults):
    """Evaluates `kl_ref`."""

    limit: float = 0.05
    per_sequence: float = 20.0

    needs = frozenset({"kl_ref"})
    signal = "kl_ref"
    scope = Scope.TRAINING
    remedy = (
        "Sample with the temperature of training, without `top_k` and with `top_p=1`. Mask "
        "padding and the tokens after the first stop token. Check that policy and reference "
        "share a tokenizer and are in evaluation mode when log-probabilities are computed."
    )

    def __post_init__(self) -> None:
        self._recent = KOfN(32, below=True)

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one KL value."""
        kl = record.values["kl_ref"]
        if not isfinite(kl):
            return None
        kind = get_kl_kind(record.attributes, "kl_ref")
        bound = -self.limit * (self.per_sequence if kind.is_summed else 1.0)
        is_low = self._recent.add(kl, bound, record.step)
        if not is_low or -self._recent.median <= self._recent.sigma:
            return None if is_low is None else CLEAR
        median = self._recent.median
        return Finding(
            summary=f"KL to the reference stays at {median:.3g} {kind.unit} (median of the last "
            "32); a divergence cannot be negative.",
            evidence={"kl_nats": kl, "kl_nats_median_of_32": median, "kl_nats_limit": bound},
            onset_step=self._recent.onset,
        )
