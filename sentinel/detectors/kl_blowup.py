"""KL blow-up: the policy moves away from its reference model at an accelerating rate.

Formula
    course   = ln max(kl, `floor`) - 2 ln S, with S the sum of the learning rates so far (a rate
               above the peak of the warm-up counts as that peak), or the number of records if no
               learning rate is logged
    Finding  = a margin CUSUM finds the course above its recent level by more than ln `ratio` and
               the median of the last 8 has been higher than ever before,
               or the median of the last 5 KL values exceeds `limit` and twice the KL at the start
    critical = that median of 8 is `severe_ratio` times the value expected from the course,
               or that median of 5 exceeds `severe` and twice the KL at the start

Units
    `floor`, `limit`, `severe`: nats per token, as `kl_ref`. For a KL summed over the tokens of a
    sequence, as determined by its key, framework and algorithm, they are multiplied by
    `per_sequence`. A KL that its trainer clamps is critical if it is almost at the clamp. `ratio`,
    `severe_ratio` and `per_sequence`: plain factors.

Source
    A policy that moves steadily drifts at most ballistically, KL ~ S^2, while a blow-up grows
    exponentially; hence the course, our own definition. The common rule "three times the baseline"
    assumes a constant KL, which no healthy run has. CUSUM: Page, Biometrika 1954.

Defaults
    On 200 healthy synthetic runs (165,000 points, single ones up to 60 times too high) `ratio` 2
    gives one false alarm, and on 15 public logs with such a KL none. A KL that doubles every 60, 20
    or 5 steps is found in 80, 100 and 100 of 100 runs, after a median of 152, 52 and 18 points; one
    that doubles every 5 from point 30 on after 48. `limit` is ten times the KL at the end of
    healthy runs, 0.035 to 0.1 nats per token; `severe` is where trainers that clamp the KL clamp
    it. `floor` covers the start, where healthy runs rise 250-fold. `per_sequence` 50 is twice a
    healthy sum of 20 nats.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import exp, inf, isfinite, log
from statistics import median
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Record
from sentinel.signals.kl import get_kl_kind
from sentinel.stats.cumulative_lr import CumulativeLearningRate
from sentinel.stats.margin_cusum import MarginCusum
from sentinel.stats.new_extreme import NewExtreme
from sentinel.stats.onset_tracker import OnsetTracker

CLAMPED_SHARE = 0.95
"""Fraction of the clamp of a trainer from which on the KL counts as clamped."""

MAX_EXP_ARGUMENT = 700.0
"""Largest argument whose exponential is finite."""

MEDIAN_WINDOW = 5
"""Values in the median compared with the limits; two outliers do not change it."""


@dataclass
class KlBlowup:
    """Evaluates `kl_ref` against its course so far."""

    ratio: float = 2.0
    floor: float = 0.01
    limit: float = 1.0
    severe: float = 10.0
    severe_ratio: float = 10.0
    per_sequence: float = 50.0

    needs: ClassVar[frozenset[str]] = frozenset({"kl_ref"})
    signal: ClassVar[str] = "kl_ref"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Resume from the checkpoint before the onset with a KL coefficient 2 to 5 times as high, "
        "or half the learning rate. If only single samples have a high KL, check padding and stop "
        "masks."
    )

    def __post_init__(self) -> None:
        self._cusum = MarginCusum(sign=1, min_sigma=0.1)
        self._margin = log(self.ratio)
        self._extremes = NewExtreme()
        self._cumulative_lr = CumulativeLearningRate()
        self._recent: deque[float] = deque()
        self._start_kl = inf
        self._is_shifted = False
        self._over_limit = OnsetTracker()

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one KL value."""
        kl = record.values["kl_ref"]
        cumulative_lr = self._cumulative_lr.add(record.values.get("learning_rate"))
        if not isfinite(kl) or cumulative_lr == 0.0:
            return None
        kind = get_kl_kind(record.attributes, "kl_ref")
        unit = self.per_sequence if kind.is_summed else 1.0
        bound = self._update_bound(kl, unit, record.step)
        cusum = self._cusum
        # The ballistic growth of a steadily moving policy is not part of the course.
        ballistic, floored = 2 * log(cumulative_lr), max(kl, self.floor * unit)
        self._extremes.add(floored)
        cusum.update(log(floored) - ballistic, self._margin, record.step)
        # After a while the new level is no new extreme any more, but still shifted.
        self._is_shifted = cusum.is_alarmed and (self._is_shifted or self._extremes.is_new)
        if not self._is_shifted and (
            len(self._recent) < MEDIAN_WINDOW or max(self._recent) <= bound
        ):
            return Clear() if cusum.is_armed else None
        level = median(self._recent) if len(self._recent) == MEDIAN_WINDOW else 0.0
        if not self._is_shifted and level <= bound:
            return Clear() if cusum.is_armed else None
        expected = (
            exp(min(cusum.baseline_median + ballistic, MAX_EXP_ARGUMENT))
            if cusum.is_armed
            else floored
        )
        is_severe = level > max(min(self.severe * unit, CLAMPED_SHARE * kind.cap), bound)
        is_severe |= (
            self._is_shifted and self._extremes.current_level > self.severe_ratio * expected
        )
        text = f"KL to the reference is {level:.3g} {kind.unit} (median of the last 5)"
        reason = (
            f"its trend predicts {expected:.3g}"
            if self._is_shifted
            else f"the limit is {bound:.3g}"
        )
        return Finding(
            summary=f"{text}; {reason}.",
            evidence={
                "kl_nats": kl,
                "kl_nats_median_of_5": level,
                "kl_nats_expected": expected,
                "kl_nats_limit": bound,
            }
            | ({"kl_kind": kind.describe()} if kind.is_known else {}),
            severity=Severity.CRITICAL if is_severe else None,
            onset_step=cusum.onset if self._is_shifted else self._over_limit.step,
        )

    def _update_bound(self, kl: float, unit: float, step: int) -> float:
        """Upper bound of the median of the last 5; at least twice the KL at the start."""
        self._recent.append(kl)
        if len(self._recent) <= MEDIAN_WINDOW:
            self._start_kl = min(self._start_kl, kl)
        else:
            self._recent.popleft()
        # A distilled policy may start far from its reference.
        bound = max(self.limit * unit, 2 * self._start_kl)
        self._over_limit.update(step, holds=kl > bound)
        return bound
