"""GPU underuse: the run's GPUs are idle much of the time.

Formula
    Finding  = the median utilisation of the last `minutes` is below `least`, while the run steps
    warning  = also, the median use of the hosts' CPUs is at least `busy`: they are the bottleneck

Units
    `minutes`: minutes; each is the mean of its measurements. `least`, `busy`: fraction of the time.

Source
    Utilisation as the driver counts it: the fraction of time in which any kernel ran. It does not
    show how well the GPU was used, so a low value is certainly low. It is evaluated only if a rank
    computes on the GPU; otherwise the GPUs may belong to other jobs.

Defaults
    `least` 0.4 is the value below which schedulers of shared clusters ask whether a job needs its
    GPUs. `minutes` 30 covers evaluations and checkpoints. It concerns cost, not health: info,
    unless the cause is certain. `busy` 0.9 leaves no processor to a data loader.
"""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass
from statistics import fmean, median

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import HEARTBEAT, Record

IDLE_SECONDS = 60.0
"""Seconds without a step after which run_stalled is responsible."""

GAP_SECONDS = 300.0
"""Seconds between two measurements after which the window restarts."""

CPU_REMEDY = (
    "Tokenize and decode the data before the training, or on the GPU. Check the hosts for other "
    "programs, and that {number of data loader workers} does not exceed the processors of a rank. "
    "Otherwise use hosts with more processors per GPU."
)


@dataclass
class GpuUnderuse:
    """Evaluates the mean utilisation of the run's GPUs."""

    least: float = 0.4
    minutes: int = 30
    busy: float = 0.9

    needs = frozenset({"gpu_utilisation"})
    events = frozenset({HEARTBEAT})
    signal = "gpu_utilisation"
    severity = Severity.INFO
    scope = Scope.PROCESS
    remedy = (
        "Compare the times of data loading and sampling with the step time to find what the GPUs "
        "wait for. Raise {batch size}, {number of data loader workers} or the batch size of the "
        "sampling engine. Otherwise use fewer GPUs."
    )

    def __post_init__(self) -> None:
        self._minute_means: deque[float] = deque()
        self._cpu_means: deque[float] = deque()
        self._minute_samples: list[tuple[float, float]] = []
        self._minute_start = 0.0
        self._last_time: float | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one measurement of the GPUs."""
        share, idle = record.values["gpu_utilisation"], record.values.get("idle_seconds", 0.0)
        cpu = record.values.get("host_cpu", 0.0)
        is_used = record.event is HEARTBEAT and record.values.get("gpu_ranks", 0.0) > 0
        is_valid = 0.0 <= share <= 1.0 and 0.0 <= cpu <= 1.0
        if not is_used or not is_valid or not idle < IDLE_SECONDS:
            return None
        if self._last_time is None or not 0.0 <= record.time - self._last_time < GAP_SECONDS:
            self.__post_init__()
            self._minute_start = record.time
        self._last_time = record.time
        self._minute_samples = [*self._minute_samples, (share, cpu)][-1024:]
        if record.time - self._minute_start >= 60.0:
            self._minute_means.append(fmean(share for share, _ in self._minute_samples))
            self._cpu_means.append(fmean(cpu for _, cpu in self._minute_samples))
            self._minute_samples, self._minute_start = [], record.time
        while len(self._minute_means) > self.minutes:
            self._minute_means.popleft()
            self._cpu_means.popleft()
        if len(self._minute_means) < self.minutes:
            return None
        utilisation = median(self._minute_means)
        if utilisation >= self.least:
            return CLEAR
        cpu = median(self._cpu_means)
        is_bottleneck = cpu >= self.busy
        reason = f", and the CPUs of the hosts for {cpu:.0%}" if is_bottleneck else ""
        return Finding(
            summary=f"The GPUs were busy for {utilisation:.0%} of the last {self.minutes} minutes"
            f"{reason}.",
            evidence={
                "median_gpu_utilisation": utilisation,
                "gpu_utilisation_now": share,
                "lowest_usual_utilisation": self.least,
                "ranks_on_gpus": record.values["gpu_ranks"],
                "median_cpu_share": cpu,
            },
            severity=Severity.WARNING if is_bottleneck else None,
            remedy=CPU_REMEDY if is_bottleneck else None,
        )
