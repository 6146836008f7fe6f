"""Straggler: one rank is slower than the others, which wait for it at every step.

Formula
    lag      = (time of the slowest rank - mean of the other ranks) / step time; for the time waited
               for data, the sampling time, the time before the backward pass and the whole step
    lag      = that before the backward pass is less the lag of another rank in data or samples
    Finding  = the same rank is the slowest in 28 of the last 32 records, and its median lag over
               these exceeds `notable`
    warning  = the median lag exceeds `costly`; or that rank is named for 32 records in a row, and
               was not in the first 64 of the run: one that is slower from the start may have more
               to do by design

Units
    `notable`, `costly`: fraction of the step time.

Source
    If gradients are averaged, a step takes equally long on every rank: the others wait inside the
    backward pass. The times of a rank before that show the slow rank: for data, for samples, and
    for the rest, which is computing. Where ranks meet before the backward pass, as some trainers do
    to count tokens, the others wait there for a rank with slow data; that rank is named. On a GPU
    the time is that of the host. A rank with only a slow GPU is found if ranks do not wait for each
    other; see sentinel_gpu_throttled for its cause.

Defaults
    `notable` 0.08 and `costly` 0.25. On 100 synthetic healthy runs (144,000 steps; 60 of them of 2
    to 64 ranks with heavy-tailed lags) there was no finding. A rank that takes 15, 40 or 150 %
    longer for its samples is a warning in 33, 40 and 40 of 40 runs, after a median of 63, 59 and 28
    records.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record
from sentinel.stats.persistent_outlier import PersistentOutlier, mean_of_others

TIME_SIGNALS = {
    "data_wait": "waits longer for data",
    "generation_time": "takes longer to sample",
    "compute_time": "is slower in computing, before its backward pass,",
    "step_time": "takes longer for a step",
}
"""Times measured on each rank."""

SPECIFIC_SIGNALS = frozenset({"data_wait", "generation_time"})
"""Times in which no rank waits for another."""

LASTING_RECORDS = 32
"""Records for which a rank is named that costs less."""

FIRST_RECORDS = 64
"""Records of a run in which a rank that is named is slower from the start."""

OUTLIER_WINDOW = 32
"""Records in the window; of two ranks, one is often the slowest by chance."""


@dataclass
class Straggler:
    """Evaluates the spread of the times of a step over the ranks."""

    notable: float = 0.08
    costly: float = 0.25

    needs: ClassVar[frozenset[str]] = frozenset({"step_time"})
    signal: ClassVar[str] = "step_time"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Check the node of the named rank for other programs and for throttled GPU clocks "
        "(`nvidia-smi -q -d PERFORMANCE`). If the rank waits for data, check its storage and "
        "raise {number of data loader workers}. If its samples or prompts are longer, distribute "
        "them evenly; otherwise replace the node."
    )

    def __post_init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._slowest_ranks = {
            name: PersistentOutlier(window=OUTLIER_WINDOW) for name in TIME_SIGNALS
        }
        self._count = 0
        self._named_rank: int | None = None
        self._named_count = 0
        self._ranks_from_start: list[int] = []

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate the times of one step."""
        if record.event is Event.START:
            self._reset()
        step_time = record.values["step_time"]
        if record.event is not Event.STEP or not 0.0 < step_time < 1e9:
            return None
        evaluated = [name for name in TIME_SIGNALS if self._update_signal(name, record, step_time)]
        if not evaluated:
            return None
        lag, name = max((self._own_lag_share(name, evaluated), name) for name in evaluated)
        outlier = self._slowest_ranks[name]
        self._count += 1
        self._update_named(outlier.rank if lag > self.notable else None)
        if lag <= self.notable or outlier.rank is None:
            return Clear() if outlier.is_full else None
        spread = record.spread[name]
        others = mean_of_others(spread.count, spread.mean, spread.max)
        return Finding(
            summary=f"Rank {outlier.rank} {TIME_SIGNALS[name]} than the other ranks: by "
            f"{lag:.0%} of the step time (median of the last {OUTLIER_WINDOW} records).",
            evidence={
                "signal": name,
                "median_lag_share_of_step": lag,
                "slowest_rank_seconds": spread.max,
                "mean_seconds_of_others": others,
                "step_seconds": step_time,
                "ranks_compared": float(spread.count),
            },
            severity=Severity.WARNING if lag > self.costly or self._is_lasting() else None,
            onset_step=min(outlier.since_step, record.step),
            rank=outlier.rank,
        )

    def _update_named(self, rank: int | None) -> None:
        """Update for how many records in a row `rank` is named."""
        self._named_count = self._named_count + 1 if rank == self._named_rank else 1
        self._named_rank = rank
        if rank is not None and self._count <= FIRST_RECORDS:
            self._ranks_from_start.append(rank)

    def _is_lasting(self) -> bool:
        return (
            self._named_count >= LASTING_RECORDS and self._named_rank not in self._ranks_from_start
        )

    def _update_signal(self, name: str, record: Record, step_time: float) -> bool:
        spread = record.spread.get(name)
        if spread is None or spread.count < 2 or not 0.0 <= spread.min <= spread.max < 1e9:
            return False
        slowest = spread.max
        others = mean_of_others(spread.count, spread.mean, slowest)
        lag = (slowest - others) / max(step_time, slowest)
        self._slowest_ranks[name].add(spread.max_rank, lag, record.step)
        return True

    def _own_lag_share(self, name: str, evaluated: list[str]) -> float:
        """The lag without what others may have waited before the backward pass."""
        share = self._lag_share(name)
        if name != "compute_time":
            return share
        rank = self._slowest_ranks[name].rank
        return share - max(
            (
                self._lag_share(other)
                for other in evaluated
                if other in SPECIFIC_SIGNALS and self._slowest_ranks[other].rank != rank
            ),
            default=0.0,
        )

    def _lag_share(self, name: str) -> float:
        outlier = self._slowest_ranks[name]
        return outlier.degree if outlier.rank is not None else 0.0
