"""Throughput drop: the run does less in an hour than it did.

Formula
    cost     = 1 / tokens per second, or step time / tokens of the step; of a run that tells neither
               step time / length of a completion, or the mere step time
    Finding  = a margin CUSUM finds ln cost above its own recent level by more than ln `ratio`
    warning  = and the median of the last 16 is over `costly` times what was usual, where cost is
               that of a token

Units
    `ratio`, `costly`: plain factors. `skip`: records after a start that are not judged. A step in
    which the run saved, or evaluated, is not judged.

Source
    Heat, a neighbour on the network, a loader that falls behind, memory that is nearly full: a run
    slows for good and nothing fails. A step alone takes longer where it has more to do, so only
    what a token costs is believed. CUSUM after Page, Biometrika 1954; lagging and frozen baseline
    as in `sentinel.stats.margin_cusum`.

Defaults
    `ratio` 1.1 and `costly` 1.5: what costs a tenth is recorded, and what costs a third of the
    hardware is told. On 100 synthetic healthy runs (165,532 points of heavy-tailed, autocorrelated
    noise of 1 to 15 % that drifts by 8 %, with evaluations nobody told of) there were 7 notes and
    no warning; runs that slow by factors of 1.15, 1.3, 1.7 and 3 are noted in 76, 100, 98 and 99 of
    100, after 16, 5, 5 and 5 points, and the last two are warnings in all, after 9 and 8. `skip` 10
    leaves compilation out.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from math import exp, inf, log
from statistics import median
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record
from sentinel.stats.margin_cusum import MarginCusum

MEDIAN_WINDOW = 16
"""Records whose median is the cost now."""

INTERRUPTING_EVENTS = frozenset({Event.SAVE, Event.EVAL, Event.PHASE})

TIME_SIGNALS = ("step_time", "data_wait", "generation_time", "weight_sync_time")

COST_KINDS = {
    "token": "a token takes",
    "length": "a step takes, for the length of its completions,",
    "step": "a step takes",
}
"""What a cost may be of, the most telling first."""
KIND_PRIORITY = ("", *reversed(COST_KINDS))


@dataclass
class ThroughputDrop:
    """Judges what a token, or a step, costs in time."""

    ratio: float = 1.1
    costly: float = 1.5
    skip: int = 10

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "step_time"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "See what a step spends more time on (data_wait, generation_time, weight_sync_time), which "
        "rank is slowest, and whether GPUs are throttled (sentinel_gpu_throttled). Then look for "
        "other programs on the nodes, storage, and memory that is nearly full."
    )

    def __post_init__(self) -> None:
        self._margin = log(self.ratio)
        self._reset()

    def _reset(self) -> None:
        self._kind = ""
        self._count = 0
        self._was_interrupted = False
        self._reset_cusum()

    def _reset_cusum(self) -> None:
        self._cost_cusum = MarginCusum(sign=1, window=256, min_sigma=0.01)
        self._recent: deque[float] = deque(maxlen=MEDIAN_WINDOW)

    def update(self, record: Record) -> DetectorOutput:
        """Judge one step's cost."""
        if record.event is Event.START:
            self._reset()
        if record.event is not Event.STEP:
            self._was_interrupted |= record.event in INTERRUPTING_EVENTS
            return None
        kind, cost = _step_cost(record)
        if not self._select_kind(kind):
            return None
        broken, self._was_interrupted = self._was_interrupted, False
        self._count += 1
        if broken or self._count <= self.skip or not 1e-30 < cost < 1e30:
            return None
        return self._evaluate(log(cost), record)

    def _select_kind(self, kind: str) -> bool:
        """Whether this is the kind that is judged; the most telling of those there are."""
        if kind != self._kind and KIND_PRIORITY.index(kind) > KIND_PRIORITY.index(self._kind):
            self._kind = kind
            self._reset_cusum()
        return bool(kind) and kind == self._kind

    def _evaluate(self, log_cost: float, record: Record) -> DetectorOutput:
        self._recent.append(log_cost)
        slow = self._cost_cusum.update(log_cost, self._margin, record.step)
        if not slow:
            return Clear() if self._cost_cusum.is_armed else None
        times = exp(median(self._recent) - self._cost_cusum.baseline_median)
        loud = self._kind == "token" and times > self.costly
        evidence: dict[str, float | str] = {
            "times": times,
            "of_a": self._kind,
            "usual_seconds": exp(self._cost_cusum.baseline_median),
            "seconds": exp(median(self._recent)),
        }
        evidence |= {name: record.values[name] for name in TIME_SIGNALS if name in record.values}
        return Finding(
            summary=f"The run has slowed: {COST_KINDS[self._kind]} {times:.3g} times as long as usual.",
            evidence=evidence,
            severity=Severity.WARNING if loud else None,
            onset_step=min(self._cost_cusum.onset, record.step),
        )


def _step_cost(record: Record) -> tuple[str, float]:
    """What is told of the cost, and the cost in seconds; empty where nothing is."""
    values = record.values
    for name in ("tokens_per_second_per_gpu", "tokens_per_second"):
        if 0.0 < (speed := values.get(name, 0.0)) < inf:
            return "token", 1.0 / speed
    time = values.get("step_time", 0.0)
    if not 0.0 < time < inf:
        return "", 0.0
    for name, kind in (("tokens", "token"), ("completion_length", "length")):
        if 0.0 < (amount := values.get(name, 0.0)) < inf:
            return kind, time / amount
    return "step", time
