"""KL negative: a divergence that is below nought is not measured where the text was sampled.

Formula
    Finding  = the median of the last 32 KL values is below -`limit`, of a KL that is summed over a
               sequence below -`limit` * `per_sequence`, and further below nought than the values
               are spread

Units
    `limit`: nats per token, as `kl_ref` is. `per_sequence`: a plain factor.

Source
    The first-order estimator of a single token may be negative, its mean over text that the policy
    itself sampled may not (Schulman, "Approximating KL divergence", 2020). Where it stays below,
    the text was sampled by another policy or with other settings than it is judged by: top-k or a
    temperature, padding that counts as text, dropout that is on (trl#351, trl#1857, trl#1161).

Defaults
    On 15 public logs with such a KL there was no warning; the lowest median among them is -0.01
    nats per token. `limit` 0.05 times `per_sequence` 20 is the -1 nat per sequence that maintainers
    of TRL call tolerable.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.signals.kl import get_kl_kind
from sentinel.stats.k_of_n import KOfN

MEDIAN_WINDOW = 32
"""Values whose median is judged: single ones are negative in every run. It errs by a fifth of their
spread, so that one below by the whole of it is below."""


@dataclass
class KlNegative:
    """Judges `kl_ref`."""

    limit: float = 0.05
    per_sequence: float = 20.0

    needs: ClassVar[frozenset[str]] = frozenset({"kl_ref"})
    signal: ClassVar[str] = "kl_ref"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Sample as the KL assumes: temperature as in training, top_k off and top_p=1. Check that "
        "padding and the tokens after the first stop token are masked, that both models are in "
        "evaluation mode when log-probabilities are taken, and that they share a tokenizer."
    )

    def __post_init__(self) -> None:
        self._recent = KOfN(MEDIAN_WINDOW, below=True)
        self._onset_step: int | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Judge one KL value."""
        kl = record.values["kl_ref"]
        if not isfinite(kl):
            return None
        kind = get_kl_kind(record.attributes, "kl_ref")
        bound = -self.limit * (self.per_sequence if kind.is_summed else 1.0)
        low = self._recent.add(kl, bound)
        if kl >= bound:
            self._onset_step = None
        elif self._onset_step is None:
            self._onset_step = record.step
        if not low:
            return Clear() if self._recent.is_full else None
        middle = self._recent.median
        if middle >= bound or -middle <= self._recent.sigma:
            return Clear()
        return Finding(
            summary=f"KL to the reference stays at {middle:.3g} {kind.unit}, which no divergence "
            "can.",
            evidence={"kl": kl, "median_of_32": middle, "limit": bound},
            onset_step=self._onset_step,
        )
