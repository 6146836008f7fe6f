"""Disk filling up: a disk that the run writes to will soon be full.

Formula
    left     = free / rate, of a disk that has filled steadily in each quarter of the last 16
               minutes, 1, 4 or 17 hours; at most twice that long ahead
    need     = the smallest drop of free space between two saves, of the last 3
    Finding  = left < `ahead`, or free < need, or free < `least`
    critical = free < `least`
    info     = left < `ahead`, and there is space for `saves` further saves or need is not known

Units
    `ahead`: seconds. `least`: bytes. `saves`: plain number. Each disk that the run writes to is
    evaluated separately.

Source
    A run cannot resume from a checkpoint that a full disk cut short; huggingface/trl#1889 filled
    12 TB in a night. Forecast: `sentinel.stats.time_to_limit`, our own.

Defaults
    `ahead` 21,600 leaves six hours to free space. `least` 256 MiB is smaller than any checkpoint.
    `saves` 2. On 100 synthetic half-days of a disk with other users and with rotated checkpoints
    nothing above info was found. A disk that fills steadily over 2, 8 and 24 hours was found 56,
    222 and 360 minutes before it was full.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.quantity_text import format_bytes, format_duration
from sentinel.model.record import HEARTBEAT, SAVE, Record
from sentinel.stats.time_to_limit import TimeToLimit

DISK_SIGNALS = ("disk_free_output", "disk_free_state")
DISK_NAMES = {
    "disk_free_output": "The checkpoint disk",
    "disk_free_state": "The disk of sentinel's state directory",
}
SAVES_TO_LEARN = 3


@dataclass
class DiskFilling(DetectorDefaults):
    """Evaluates the free space of each disk."""

    ahead: float = 21_600.0
    least: float = 268_435_456.0
    saves: float = 2.0

    events = frozenset({SAVE, HEARTBEAT})
    signal = "disk_free"
    scope = Scope.PROCESS
    remedy = (
        "Delete old checkpoints, or let the trainer do so with {checkpoint limit}. Raise {save "
        "interval}, or set {output directory} to a larger disk. Check what else writes to this "
        "disk."
    )

    def __post_init__(self) -> None:
        self._trends: dict[str, TimeToLimit] = {}
        self._has_saved = False
        self._highest_free: float | None = None
        self._lowest_free = inf
        self._save_sizes: list[float] = []

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one measurement of the disks, or record a save."""
        if record.event is SAVE:
            self._record_save()
        disks = {name: record.values[name] for name in DISK_SIGNALS if name in record.values}
        if not disks and "disk_free" in record.values:
            disks = {"disk_free": record.values["disk_free"]}
        disks = {name: free for name, free in disks.items() if isfinite(free) and free >= 0.0}
        if record.event is not HEARTBEAT or not disks:
            return None
        findings = [self._evaluate(name, free, record.time) for name, free in disks.items()]
        return min(filter(None, findings), key=_severity_key, default=CLEAR)

    def _evaluate(self, signal: str, free: float, time: float) -> Finding | None:
        trend = self._trends.setdefault(signal, TimeToLimit())
        trend.add(time, -free)
        need = self._bytes_per_save(free) if signal != "disk_free_state" else 0.0
        left = trend.seconds_left(0.0)
        disk, space = DISK_NAMES.get(signal, "The fullest disk"), format_bytes(free, 3)
        if free < self.least:
            text = f"{disk} is almost full: {space} are free."
        elif left < self.ahead:
            text = f"{disk} will be full in {format_duration(left)}: {space} are free."
        elif free < need:
            text = f"{disk} has {space} free; a save needs {format_bytes(need, 3)}."
        else:
            return None
        evidence = {"free_bytes": free, "fill_rate_bytes_per_second": trend.rise_per_second}
        if isfinite(left):
            evidence["seconds_until_full"] = left
        if need:
            evidence["checkpoint_bytes"] = need
        return Finding(summary=text, evidence=evidence, severity=self._severity(signal, free, need))

    def _severity(self, signal: str, free: float, save_bytes: float) -> Severity | None:
        """Severity. A trainer that rotates checkpoints fills the disk only up to a limit."""
        if free < self.least:
            return Severity.CRITICAL
        has_saves = self._has_saved and signal != "disk_free_state"
        has_space = free >= self.saves * save_bytes if save_bytes else has_saves
        return Severity.INFO if has_saves and has_space else None

    def _bytes_per_save(self, free: float) -> float:
        """Smallest drop of free space of the last saves; 0 if there are too few saves."""
        self._highest_free = free if self._highest_free is None else max(self._highest_free, free)
        self._lowest_free = min(self._lowest_free, free)
        return min(self._save_sizes) if len(self._save_sizes) == SAVES_TO_LEARN else 0.0

    def _record_save(self) -> None:
        """Store the drop of free space since the previous save."""
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
