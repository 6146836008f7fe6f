"""GPU underuse: the run's GPUs have nothing to do for much of the time.

Formula
    Finding  = the median utilisation of the last `minutes` is under `least`, while the run steps

Units
    `minutes`: minutes, each the mean of its looks. `least`: share of the time, of 1.

Source
    Utilisation as the driver counts it: the share of the time in which any kernel ran. It says
    nothing of how well the GPU was used, so a low one is surely low. It is only judged where a rank
    was seen to compute on the GPU; elsewhere the GPUs may be anybody's.

Defaults
    `least` 0.4 is the mark below which schedulers of shared clusters ask whether a job needs its
    GPUs. `minutes` 30 covers evaluations and checkpoints. It is money, not health: recorded, and
    nobody is woken.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import fmean, median
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record

IDLE_SECONDS = 60.0
"""A run that has not stepped for so long is another detector's."""

GAP_SECONDS = 300.0
"""Without a look for so long, what was before is over."""


@dataclass
class GpuUnderuse:
    """Judges the mean utilisation of the run's GPUs."""

    least: float = 0.4
    minutes: int = 30

    needs: ClassVar[frozenset[str]] = frozenset({"gpu_utilisation"})
    signal: ClassVar[str] = "gpu_utilisation"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Compare data_wait and generation_time with step_time to see what the GPUs wait for; then "
        "raise per_device_train_batch_size, num_workers of the loader, or the batch of the "
        "sampling engine. A run that needs no more can do with fewer GPUs."
    )

    def __post_init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._minute_means: deque[float] = deque()
        self._minute_samples: list[float] = []
        self._minute_start = 0.0
        self._last_time: float | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Judge one look at the GPUs."""
        share, idle = record.values["gpu_utilisation"], record.values.get("idle_seconds", 0.0)
        used = record.event is Event.HEARTBEAT and record.values.get("gpu_ranks", 0.0) > 0
        if not used or not 0.0 <= share <= 1.0 or not idle < IDLE_SECONDS:
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
        usual = median(self._minute_means)
        if usual >= self.least:
            return Clear()
        return Finding(
            summary=f"The run's GPUs had work in {usual:.0%} of the last {self.minutes} minutes.",
            evidence={
                "utilisation": usual,
                "utilisation_now": share,
                "least": self.least,
                "gpu_ranks": record.values["gpu_ranks"],
            },
        )
