"""GPU underuse: the run's GPUs are idle much of the time.

Formula
    Finding  = the median utilisation of the last `minutes` is below `least`, while the run steps

Units
    `minutes`: minutes; each is the mean of its measurements. `least`: fraction of the time.

Source
    Utilisation as the driver counts it: the fraction of time in which any kernel ran. It does not
    show how well the GPU was used, so a low value is certainly low. It is evaluated only if a rank
    computes on the GPU; otherwise the GPUs may belong to other jobs.

Defaults
    `least` 0.4 is the value below which schedulers of shared clusters ask whether a job needs its
    GPUs. `minutes` 30 covers evaluations and checkpoints. It concerns cost, not health: info only.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import fmean, median
from typing import ClassVar

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import Event, Record

IDLE_SECONDS = 60.0
"""Seconds without a step after which run_stalled is responsible."""

GAP_SECONDS = 300.0
"""Seconds between two measurements after which the window restarts."""


@dataclass
class GpuUnderuse:
    """Evaluates the mean utilisation of the run's GPUs."""

    least: float = 0.4
    minutes: int = 30

    needs: ClassVar[frozenset[str]] = frozenset({"gpu_utilisation"})
    events: ClassVar[frozenset[Event]] = frozenset({Event.HEARTBEAT})
    signal: ClassVar[str] = "gpu_utilisation"
    severity: ClassVar[Severity] = Severity.INFO
    scope: ClassVar[Scope] = Scope.PROCESS
    remedy: ClassVar[str] = (
        "Compare the times of data loading and sampling with the step time to find what the GPUs "
        "wait for. Raise {batch size}, {number of data loader workers} or the batch size of the "
        "sampling engine. Otherwise use fewer GPUs."
    )

    def __post_init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._minute_means: deque[float] = deque()
        self._minute_samples: list[float] = []
        self._minute_start = 0.0
        self._last_time: float | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one measurement of the GPUs."""
        share, idle = record.values["gpu_utilisation"], record.values.get("idle_seconds", 0.0)
        is_used = record.event is Event.HEARTBEAT and record.values.get("gpu_ranks", 0.0) > 0
        if not is_used or not 0.0 <= share <= 1.0 or not idle < IDLE_SECONDS:
            return None
        if self._last_time is None or not 0.0 <= record.time - self._last_time < GAP_SECONDS:
            self._reset()
            self._minute_start = record.time
        self._last_time = record.time
        self._minute_samples = [*self._minute_samples, share][-1024:]
        if record.time - self._minute_start >= 60.0:
            self._minute_means.append(fmean(self._minute_samples))
            self._minute_samples, self._minute_start = [], record.time
        while len(self._minute_means) > self.minutes:
            self._minute_means.popleft()
        if len(self._minute_means) < self.minutes:
            return None
        utilisation = median(self._minute_means)
        if utilisation >= self.least:
            return CLEAR
        return Finding(
            summary=f"The GPUs were busy for {utilisation:.0%} of the last {self.minutes} minutes.",
            evidence={
                "median_gpu_utilisation": utilisation,
                "gpu_utilisation_now": share,
                "lowest_usual_utilisation": self.least,
                "ranks_on_gpus": record.values["gpu_ranks"],
            },
        )
