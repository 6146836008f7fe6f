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

from sentinel.model.finding import Calm, Finding, Opinion, Severity
from sentinel.model.record import Record
from sentinel.signals.kl import kind_of
from sentinel.stats.k_of_n import Majority
from sentinel.stats.rolling_quantiles import RollingQuantiles

VALUES = 8
"""Values whose median is judged."""

ABSOLUTE = 3.0
"""A mean absolute difference over a divergence, for the same engines."""

FAR = 10.0
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
        self._kl = Majority(VALUES)
        self._far = False
        self._ratio = RollingQuantiles(VALUES)
        self._since: int | None = None

    def update(self, record: Record) -> Opinion:
        """Judge what one record says of either; nothing of a record that has neither."""
        kl = record.values.get("kl_mismatch")
        ratio = record.values.get("importance_ratio_mean")
        if kl is None and ratio is None:
            return None
        kind = kind_of(record.facts, "kl_mismatch")
        limit = self.limit * (ABSOLUTE if kind.estimator == "abs" else 1.0)
        if kl is not None and isfinite(kl):
            self._far = self._kl.add(abs(kl), limit)
        if ratio is not None and isfinite(ratio) and ratio > 0.0:
            self._ratio.add(ratio)
        told = len(self._ratio) == VALUES
        if not self._far and not told:
            self._since = None
            return Calm() if self._kl.full else None
        away = self._kl.median if self._kl.full else 0.0
        skew = self._ratio.median if told else 1.0
        askew = max(skew, 1 / skew) > self.ratio
        if away <= limit and not askew:
            self._since = None
            return Calm()
        if self._since is None:
            self._since = record.step
        return Finding(
            summary=f"What samples is not what is trained: {away:.3g} {kind.unit} apart, mean "
            f"importance ratio {skew:.3g}.",
            evidence={"kl_mismatch": away, "limit": limit, "importance_ratio": skew},
            severity=Severity.WARNING if askew or away > FAR * limit else None,
            onset_step=self._since,
        )
