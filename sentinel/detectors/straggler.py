"""Straggler: one rank is slower than the others, and they wait for it at every step.

Formula
    lag      = the slowest rank's time less the mean of the others', over the time of the step; of
               the time waited for data, of sampling, and of the whole step
    Finding  = the same rank is the slowest in 28 of the last 32 records, and the median lag over
               these is over `notable`
    warning  = the median lag is over `costly`

Units
    `notable`, `costly`: share of the time of a step, of 1.

Source
    Where gradients are averaged the whole step takes equally long on every rank: the others wait
    inside the backward pass. What a rank does by itself before that tells them apart: its data, and
    its samples. A rank whose GPU alone is slow is seen only where ranks do not wait for each other;
    sentinel_gpu_throttled shows its cause.

Defaults
    `notable` 0.1 and `costly` 0.25. On 60 synthetic runs of 2,000 steps of 2 to 64 healthy
    ranks, lags drawn from a heavy tail, there was no finding; a rank that takes a seventh, or half,
    of a step longer was the one named in all runs, after 28 records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record
from sentinel.stats.persistent_outlier import PersistentOutlier, mean_of_others

TIME_SIGNALS = {
    "data_wait": "waits for data",
    "generation_time": "samples",
    "step_time": "takes for a step",
}
"""Times that a rank spends by itself, the most telling first."""

OUTLIER_WINDOW = 32
"""Records in which the same rank must be the slowest: of two ranks, chance has one often enough."""


@dataclass
class Straggler:
    """Judges the spread of the times of a step over the ranks."""

    notable: float = 0.1
    costly: float = 0.25

    needs: ClassVar[frozenset[str]] = frozenset({"step_time"})
    signal: ClassVar[str] = "step_time"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Look at the node of the rank named: storage and data loader workers if it waits for data "
        "(num_workers, prefetch_factor), other programs, and the clocks of its GPU "
        "(nvidia-smi -q -d PERFORMANCE). Give its shard or its prompts to the others if these are "
        "longer; else replace the node."
    )

    def __post_init__(self) -> None:
        self._slowest_ranks = {
            name: PersistentOutlier(window=OUTLIER_WINDOW) for name in TIME_SIGNALS
        }

    def update(self, record: Record) -> DetectorOutput:
        """Judge one step's times."""
        if record.event is Event.START:
            self.__post_init__()
        step_time = record.values["step_time"]
        if record.event is not Event.STEP or not 0.0 < step_time < 1e9:
            return None
        judged = [name for name in TIME_SIGNALS if self._update_signal(name, record, step_time)]
        if not judged:
            return None
        lag, name = max((self._lag_share(name), name) for name in judged)
        lone = self._slowest_ranks[name]
        if lag <= self.notable or lone.rank is None:
            return Clear() if lone.is_full else None
        spread = record.spread[name]
        rest = mean_of_others(spread.count, spread.mean, spread.max)
        return Finding(
            summary=f"Rank {lone.rank} {TIME_SIGNALS[name]} longer than the others, by {lag:.0%} of a "
            f"step: {spread.max:.3g} s now, and the others {rest:.3g} s.",
            evidence={
                "signal": name,
                "lag_share": lag,
                "slowest_seconds": spread.max,
                "others_seconds": rest,
                "step_seconds": step_time,
                "ranks": float(spread.count),
            },
            severity=Severity.WARNING if lag > self.costly else None,
            onset_step=min(lone.since_step, record.step),
            rank=lone.rank,
        )

    def _update_signal(self, name: str, record: Record, step_time: float) -> bool:
        spread = record.spread.get(name)
        if spread is None or spread.count < 2 or not 0.0 <= spread.min <= spread.max < 1e9:
            return False
        most = spread.max
        lag = (most - mean_of_others(spread.count, spread.mean, most)) / max(step_time, most)
        self._slowest_ranks[name].add(spread.max_rank, lag, record.step)
        return True

    def _lag_share(self, name: str) -> float:
        lone = self._slowest_ranks[name]
        return lone.degree if lone.rank is not None else 0.0
