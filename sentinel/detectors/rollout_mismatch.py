"""Rollout mismatch: the sampling engine's policy differs from the trained policy.

Formula
    apart    = the median of the last 8 mismatch KLs exceeds `limit`, or three times that for a mean
               absolute difference of log-probabilities
    askew    = the median of the last 8 mean importance ratios is above `ratio` or below 1 / `ratio`
    Finding  = apart or askew
    warning  = askew, or ten times the limit; otherwise info
    onset    = the first record beyond a limit; it may have begun since the record before

Units
    `limit`: nats per token, as `kl_mismatch`. `ratio`: plain factor.

Source
    Yao et al. 2025 on the mismatch of sampling and training engine, and verl's page on rollout
    correction, which warns at the same two values.

Defaults
    `limit` 0.1 and `ratio` 2 are verl's; engines with the same precision differ by 0.001 to 0.03.
    Whether a mismatch is harmful depends on the correction in use, so a moderate one is info.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import inf, isfinite

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.signals.kl import get_kl_kind
from sentinel.stats.k_of_n import KOfN
from sentinel.stats.rolling_quantiles import RollingQuantiles

MEDIAN_WINDOW = 8
"""Values in the evaluated median."""

ABS_TO_KL_FACTOR = 3.0
"""Ratio of the mean absolute difference to the divergence of the same engines."""

SEVERE_LIMIT_FACTOR = 10.0
"""Multiple of the limit that differences in precision do not explain."""


@dataclass
class RolloutMismatch(DetectorDefaults):
    """Evaluates `kl_mismatch` and `importance_ratio_mean` if they are logged."""

    limit: float = 0.1
    ratio: float = 2.0

    steps_with = frozenset({"importance_ratio_mean", "kl_mismatch"})
    signal = "kl_mismatch"
    severity = Severity.INFO
    remedy = (
        "Check that the engine receives new weights before it samples. Use the same precision "
        "and sampling parameters in engine and trainer. Enable {importance-sampling correction}."
    )

    def __post_init__(self) -> None:
        self._recent_kl = KOfN(MEDIAN_WINDOW)
        self._recent_ratios = RollingQuantiles(MEDIAN_WINDOW)
        self._recent_steps: deque[tuple[int, bool]] = deque(maxlen=MEDIAN_WINDOW + 1)
        self._onset: tuple[int, int] | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one record; None if it has neither signal."""
        kl = record.values.get("kl_mismatch")
        ratio = record.values.get("importance_ratio_mean")
        if kl is None and ratio is None:
            return None
        kind = get_kl_kind(record.attributes, "kl_mismatch")
        limit = self.limit * (ABS_TO_KL_FACTOR if kind.estimator == "abs" else 1.0)
        if kl is not None and isfinite(kl):
            self._recent_kl.add(abs(kl), limit, record.step)
        if ratio is not None and isfinite(ratio) and ratio > 0.0:
            self._recent_ratios.add(ratio)
        self._recent_steps.append((record.step, self._is_beyond(kl, ratio, limit)))
        has_ratio = len(self._recent_ratios) == MEDIAN_WINDOW
        if not self._recent_kl.is_full and not has_ratio:
            return None
        mismatch = self._recent_kl.median if self._recent_kl.is_full else 0.0
        mean_ratio = self._recent_ratios.median if has_ratio else 1.0
        is_askew = max(mean_ratio, 1 / mean_ratio) > self.ratio
        if not (mismatch > limit or is_askew):
            self._onset = None
            return CLEAR
        self._onset = self._onset or self._find_onset()
        is_severe = is_askew or mismatch > SEVERE_LIMIT_FACTOR * limit
        return Finding(
            summary="The policy of the sampling engine differs from the trained policy: "
            f"mismatch {mismatch:.3g} {kind.unit}, mean importance ratio {mean_ratio:.3g}.",
            evidence={
                "kl_mismatch_nats_median_of_8": mismatch,
                "kl_mismatch_limit_nats": limit,
                "importance_ratio_median_of_8": mean_ratio,
            },
            severity=Severity.WARNING if is_severe else None,
            onset_step=self._onset[1],
            onset_range=self._onset,
        )

    def _is_beyond(self, kl: float | None, ratio: float | None, limit: float) -> bool:
        """Whether one record is beyond a limit."""
        is_high = kl is not None and limit < abs(kl) < inf
        is_askew = ratio is not None and not 1 / self.ratio <= ratio <= self.ratio
        return is_high or is_askew

    def _find_onset(self) -> tuple[int, int]:
        """The step after the last record within the limits, and the first record beyond them.

        A single record within the limits is noise.
        """
        records = list(self._recent_steps)
        earliest = latest = records[-1][0]
        within = 0
        for step, is_beyond in reversed(records):
            within = 0 if is_beyond else within + 1
            if is_beyond:
                earliest = latest = step
            elif within == 1:
                earliest = step + 1
            elif within == 2:
                break
        return min(earliest, latest), latest
