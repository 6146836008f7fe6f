"""Rollout mismatch: the engine that samples is not the policy that is trained.

Formula
    apart    = the median of the last 8 mismatch KLs is over `limit`, of a mean absolute difference
               of log-probabilities over three times that
    askew    = the median of the last 8 mean importance ratios is over `ratio`, or under 1 / `ratio`
    Finding  = apart or askew
    warning  = askew, or ten times the limit; otherwise info

Units
    `limit`: nats per token, as `kl_mismatch` is. `ratio`: a plain factor.

Source
    Yao et al. 2025 on the mismatch of sampler and trainer, and verl's page on rollout correction,
    which warns at the same two numbers.

Defaults
    `limit` 0.1 and `ratio` 2 are verl's; engines in the same precision differ by 0.001 to 0.03.
    Whether a mismatch hurts depends on the correction in use, so that a moderate one is shown only.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.signals.kl import get_kl_kind
from sentinel.stats.k_of_n import KOfN
from sentinel.stats.rolling_quantiles import RollingQuantiles

MEDIAN_WINDOW = 8
"""Values whose median is judged."""

ABS_TO_KL_FACTOR = 3.0
"""A mean absolute difference over a divergence, for the same engines."""

SEVERE_LIMIT_FACTOR = 10.0
"""Limits at which it is no matter of precision."""


@dataclass
class RolloutMismatch:
    """Judges `kl_mismatch` and `importance_ratio_mean`, whichever is logged."""

    limit: float = 0.1
    ratio: float = 2.0

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "kl_mismatch"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Check that new weights reach the engine before it samples, and that both use one "
        "precision and one set of sampling parameters. Then correct for what is left: in TRL "
        "vllm_importance_sampling_correction=True, in verl algorithm.rollout_correction."
    )

    def __post_init__(self) -> None:
        self._recent_kl = KOfN(MEDIAN_WINDOW)
        self._is_kl_high = False
        self._recent_ratios = RollingQuantiles(MEDIAN_WINDOW)
        self._onset_step: int | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Judge what one record says of either; nothing of a record that has neither."""
        kl = record.values.get("kl_mismatch")
        ratio = record.values.get("importance_ratio_mean")
        if kl is None and ratio is None:
            return None
        kind = get_kl_kind(record.attributes, "kl_mismatch")
        limit = self.limit * (ABS_TO_KL_FACTOR if kind.estimator == "abs" else 1.0)
        if kl is not None and isfinite(kl):
            self._is_kl_high = self._recent_kl.add(abs(kl), limit)
        if ratio is not None and isfinite(ratio) and ratio > 0.0:
            self._recent_ratios.add(ratio)
        told = len(self._recent_ratios) == MEDIAN_WINDOW
        if not self._is_kl_high and not told:
            self._onset_step = None
            return Clear() if self._recent_kl.is_full else None
        away = self._recent_kl.median if self._recent_kl.is_full else 0.0
        skew = self._recent_ratios.median if told else 1.0
        askew = max(skew, 1 / skew) > self.ratio
        if away <= limit and not askew:
            self._onset_step = None
            return Clear()
        if self._onset_step is None:
            self._onset_step = record.step
        return Finding(
            summary=f"What samples is not what is trained: {away:.3g} {kind.unit} apart, mean "
            f"importance ratio {skew:.3g}.",
            evidence={"kl_mismatch": away, "limit": limit, "importance_ratio": skew},
            severity=Severity.WARNING if askew or away > SEVERE_LIMIT_FACTOR * limit else None,
            onset_step=self._onset_step,
        )
