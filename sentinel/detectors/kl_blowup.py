"""KL blow-up: the policy is running away from its reference model.

Formula
    course   = ln max(kl, `floor`) - 2 ln S, with S the sum of the learning rates so far (one above
               the peak of the warm-up counting as that peak), or the count of records where no
               learning rate is given
    Finding  = a margin CUSUM finds the course above its own recent level by more than ln `ratio`
               and the median of the last 8 stood higher than ever before,
               or the median of the last 5 KL values is over `limit` and twice where the run began
    critical = that median of 8 is `severe_ratio` times what the course led to expect,
               or that median of 5 is over `severe` and twice where the run began

Units
    `floor`, `limit`, `severe`: nats per token, as `kl_ref` is. A KL that is summed over the tokens
    of a sequence, as its logged name, framework and algorithm tell, is held to `per_sequence` times
    as much; one that its trainer clamps is severe when it is all but at the clamp. `ratio`,
    `severe_ratio` and `per_sequence` are plain factors.

Source
    A policy that moves steadily drifts at most ballistically, KL ~ S^2, while a blow-up grows
    exponentially: hence the course, which is ours. The common rule "three times the baseline" asks
    for a constant that no healthy run keeps. CUSUM after Page, Biometrika 1954.

Defaults
    On 200 healthy synthetic runs (165,000 points, single ones up to 60 times too high) `ratio` 2
    gives one false alarm, and on 15 public logs with such a KL none. A KL that doubles every
    60, 20 or 5 steps is found in 80, 100 and 100 of 100 runs, by the median after 152, 52 and 18
    points; one that doubles every 5 from point 30 on after 48. `limit` is ten times where healthy
    runs end, 0.035 to 0.1 nats per token; `severe` is where trainers that clamp the KL clamp it.
    `floor` covers the start, where healthy runs rise 250-fold. `per_sequence` 50 allows a healthy
    sum of 20 nats twice over.
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

CLAMPED_SHARE = 0.95
"""Share of what a trainer clamps the KL to: the median of clamped values is hardly more."""

MAX_EXP_ARGUMENT = 700.0
"""Largest logarithm whose exponential is still a number."""

MEDIAN_WINDOW = 5
"""Values whose median is held against the limits: two wild ones of five say nothing."""


@dataclass
class KlBlowup:
    """Judges `kl_ref` against the course it has taken so far."""

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
        "Go back to the checkpoint before the onset, and raise the KL coefficient two- to fivefold "
        "or halve the learning rate. If only single samples are wild, check padding and stop masks."
    )

    def __post_init__(self) -> None:
        self._cusum = MarginCusum(sign=1, min_sigma=0.1)
        self._margin = log(self.ratio)
        self._extremes = NewExtreme()
        self._cumulative_lr = CumulativeLearningRate()
        self._recent: deque[float] = deque()
        self._start_kl = inf
        self._is_shifted = False
        self._over_limit_step: int | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Judge one KL value."""
        kl = record.values["kl_ref"]
        travelled = self._cumulative_lr.add(record.values.get("learning_rate"))
        if not isfinite(kl) or travelled == 0.0:
            return None
        kind = get_kl_kind(record.attributes, "kl_ref")
        unit = self.per_sequence if kind.is_summed else 1.0
        bound = self._update_bound(kl, unit, record.step)
        course = self._cusum
        # What a steady policy does as it travels is no part of its course.
        ballistic, seen = 2 * log(travelled), max(kl, self.floor * unit)
        self._extremes.add(seen)
        course.update(log(seen) - ballistic, self._margin, record.step)
        # Where it has gone becomes known ground in time, and it is still away.
        left = self._is_shifted = course.is_alarmed and (self._is_shifted or self._extremes.is_new)
        if not left and (len(self._recent) < MEDIAN_WINDOW or max(self._recent) <= bound):
            return Clear() if course.is_armed else None
        level = median(self._recent) if len(self._recent) == MEDIAN_WINDOW else 0.0
        if not left and level <= bound:
            return Clear() if course.is_armed else None
        expected = (
            exp(min(course.baseline_median + ballistic, MAX_EXP_ARGUMENT))
            if course.is_armed
            else seen
        )
        wild = level > max(min(self.severe * unit, CLAMPED_SHARE * kind.cap), bound)
        wild |= left and self._extremes.current_level > self.severe_ratio * expected
        times = (
            f"{level / expected:.3g} times its course" if left else f"over its limit {bound:.3g}"
        )
        return Finding(
            summary=f"KL to the reference is {level:.3g} {kind.unit}, {times}.",
            evidence={"kl": kl, "median_of_5": level, "expected": expected, "limit": bound}
            | ({"kind": kind.describe()} if kind.is_known else {}),
            severity=Severity.CRITICAL if wild else None,
            onset_step=course.onset if left else self._over_limit_step,
        )

    def _update_bound(self, kl: float, unit: float, step: int) -> float:
        """What the median of the last 5 must not pass (a distilled run begins far off)."""
        self._recent.append(kl)
        if len(self._recent) <= MEDIAN_WINDOW:
            self._start_kl = min(self._start_kl, kl)
        else:
            self._recent.popleft()
        bound = max(self.limit * unit, 2 * self._start_kl)
        if kl <= bound:
            self._over_limit_step = None
        elif self._over_limit_step is None:
            self._over_limit_step = step
        return bound
