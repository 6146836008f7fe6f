"""Disk filling: soon there will be no room for what the run writes.

Formula
    left     = free / rate, of a disk that has become fuller steadily in each quarter of the last
               16 minutes, 1, 4 or 17 hours; no further ahead than twice that
    need     = the least that the room fell by between two saves, of the last 3
    Finding  = left < `ahead`, or free < need, or free < `least`
    critical = free < `least`
    info     = left < `ahead`, where there is room for `saves` more of need; or need is not known

Units
    `ahead`: seconds. `least`: bytes. `saves`: plain number. Each disk that the run writes to is
    judged by itself.

Source
    A checkpoint that was cut short by a full disk is the one that a run cannot resume from;
    huggingface/trl#1889 filled 12 TB in a night. Forecast: `sentinel.stats.time_to_limit`, ours.

Defaults
    `ahead` 21,600 leaves six hours to make room. `least` 256 MiB is less than a checkpoint of
    anything. `saves` 2. On 100 synthetic half-days of a disk that others use as well, with saves
    of which the oldest are removed, nothing louder than info was found; a disk that fills steadily
    over 2, 8 and 24 hours was foreseen 56, 222 and 360 minutes before it was full.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record
from sentinel.stats.time_to_limit import TimeToLimit

DISK_SIGNALS = ("disk_free_output", "disk_free_state")
DISK_NAMES = {
    "disk_free_output": "of the checkpoints",
    "disk_free_state": "of sentinel's own state",
}
SAVES_TO_LEARN = 3
GIB = 2.0**30


@dataclass
class DiskFilling:
    """Judges the free room of each disk."""

    ahead: float = 21_600.0
    least: float = 268_435_456.0
    saves: float = 2.0

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "disk_free"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Remove old checkpoints, or have the trainer do so (save_total_limit), save less often "
        "(save_steps), or point output_dir at a larger disk. Check what else writes there."
    )

    def __post_init__(self) -> None:
        self._trends: dict[str, TimeToLimit] = {}
        self._has_saved = False
        self._highest_free: float | None = None
        self._lowest_free = inf
        self._save_sizes: list[float] = []

    def update(self, record: Record) -> DetectorOutput:
        """Judge one look at the disks; learn what a save takes."""
        if record.event is Event.SAVE:
            self._record_save()
        told = {name: record.values[name] for name in DISK_SIGNALS if name in record.values}
        if not told and "disk_free" in record.values:
            told = {"disk_free": record.values["disk_free"]}
        told = {name: free for name, free in told.items() if isfinite(free) and free >= 0.0}
        if record.event is not Event.HEARTBEAT or not told:
            return None
        found = [self._evaluate(name, free, record.time) for name, free in told.items()]
        return min(filter(None, found), key=_severity_key, default=Clear())

    def _evaluate(self, signal: str, free: float, time: float) -> Finding | None:
        creep = self._trends.setdefault(signal, TimeToLimit())
        creep.add(time, -free)
        need = self._bytes_per_save(free) if signal != "disk_free_state" else 0.0
        left = creep.seconds_left(0.0)
        disk = f"The disk {DISK_NAMES[signal]}" if signal in DISK_NAMES else "The fullest disk"
        if free < self.least:
            text = f"{disk} is full: {free / GIB:.3g} GiB are left."
        elif left < self.ahead:
            text = f"{disk} will be full in {left / 60:.0f} minutes: {free / GIB:.3g} GiB are left."
        elif free < need:
            text = f"{disk} has {free / GIB:.3g} GiB left; a save took {need / GIB:.3g} GiB."
        else:
            return None
        return Finding(
            summary=text,
            evidence={
                "free_bytes": free,
                "bytes_per_second": creep.rise_per_second,
                "seconds_left": left if isfinite(left) else -1.0,
                "save_bytes": need,
            },
            severity=self._severity(signal, free, need),
        )

    def _severity(self, signal: str, free: float, save_bytes: float) -> Severity | None:
        """A trainer that keeps the last few checkpoints fills the disk up to there, and no more."""
        if free < self.least:
            return Severity.CRITICAL
        by_saves = self._has_saved and signal != "disk_free_state"
        roomy = free >= self.saves * save_bytes if save_bytes else by_saves
        return Severity.INFO if by_saves and roomy else None

    def _bytes_per_save(self, free: float) -> float:
        """What each of the last saves took at least, the room at its highest less at its lowest."""
        self._highest_free = free if self._highest_free is None else max(self._highest_free, free)
        self._lowest_free = min(self._lowest_free, free)
        return min(self._save_sizes) if len(self._save_sizes) == SAVES_TO_LEARN else 0.0

    def _record_save(self) -> None:
        """From one save to the next; before the second, what fell may be anything."""
        self._has_saved = True
        if self._highest_free is not None:
            self._save_sizes = [
                *self._save_sizes,
                max(0.0, self._highest_free - self._lowest_free),
            ][-SAVES_TO_LEARN:]
        self._highest_free, self._lowest_free = None, inf


def _severity_key(finding: Finding) -> tuple[int, float]:
    severity = finding.severity or DiskFilling.severity
    return severity.order, float(finding.evidence["free_bytes"])
