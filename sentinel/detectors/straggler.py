"""Straggler: one rank is slower than the others, which wait for it at every step.

Formula
    lag      = (time of the slowest rank - mean of the other ranks) / step time; for the time waited
               for data, the sampling time, the time before the backward pass and the whole step
    block    = one step, or as many as take half a second; its slowest rank is the one with the
               highest sum of lags, which is less that of the next rank
    lag      = that before the backward pass is less the lag of another rank in data or samples
    Finding  = the same rank is the slowest in 28 of the last 32 blocks, each time by half of
               `notable` at least, and its median lag over these exceeds `notable`
    warning  = the median lag exceeds `costly`; or that rank was not named in the first 64 blocks of
               the run, and is for 32 blocks in a row by more than `lasting`, or for 10 minutes: one
               that is slower from the start may have more to do by design

Units
    `notable`, `lasting`, `costly`: fraction of the step time.

Source
    If gradients are averaged, a step takes equally long on every rank: the others wait inside the
    backward pass. The times of a rank before that show the slow rank: for data, for samples, and
    for the rest, which is computing. Where ranks meet before the backward pass, as some trainers do
    to count tokens, the others wait there for a rank with slow data; that rank is named. On a GPU
    the time is that of the host. A rank with only a slow GPU is found if ranks do not wait for each
    other; see sentinel_gpu_throttled for its cause.

Defaults
    `notable` 0.08, `lasting` 0.125 and `costly` 0.25. Between two gloo ranks on 2 cores with 0 to
    20 other busy programs (12 recordings of 2 to 100 ms a step), the lag over 16 s was 5.6 % of the
    time at most; over 32 single steps it was up to 9 %. On 200 runs drawn from these, and on 200
    synthetic ones of 2 to 64 ranks of 5 ms to 5 s a step, in which other programs delay one rank
    by 10 to 150 % for up to 12 s, there was no warning and 8 info findings. On the same runs, a
    rank that takes 20, 50 or 100 % of the step time longer is a warning in 168, 186 and 186 of 186,
    after a median of 34, 15 and 15 s; where a step takes a second or more, 40 % longer for samples
    is one after 59 records, 150 % after 28.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Severity
from sentinel.model.record import START, STEP, Record
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

BLOCK_SECONDS = 0.5
"""Time of a block. A busy machine delays one rank for a second and then the other, which is many
steps of a small model; 32 blocks are 16 s at least."""

OUTLIER_WINDOW = 32
"""Blocks in the window; of two ranks, one is often the slowest by chance."""

MIN_SHARE = 0.5
"""Fraction of `notable` by which a rank is slower in each block that names it."""

NO_RANK = -1
"""Named by a block in which no rank is slower by that."""

LASTING_BLOCKS = 32
"""Blocks for which a rank is named that costs less than `costly`."""

LASTING_SECONDS = 600.0
"""Time for which a rank is named that costs less than `lasting`: a minute is lost by then."""

FIRST_BLOCKS = 64
"""Blocks of a run in which a rank that is named is slower from the start."""


@dataclass
class Straggler:
    """Evaluates the spread of the times of a step over the ranks."""

    notable: float = 0.08
    lasting: float = 0.125
    costly: float = 0.25

    needs = frozenset({"step_time"})
    signal = "step_time"
    severity = Severity.INFO
    remedy = (
        "Check the node of the named rank for other programs and for throttled GPU clocks "
        "(`nvidia-smi -q -d PERFORMANCE`). If the rank waits for data, check its storage and "
        "raise {number of data loader workers}. If its samples or prompts are longer, distribute "
        "them evenly; otherwise replace the node."
    )

    def __post_init__(self) -> None:
        self._slowest_ranks = {
            name: PersistentOutlier(window=OUTLIER_WINDOW) for name in TIME_SIGNALS
        }
        self._begin_block()
        self._count = 0
        self._named_rank: int | None = None
        self._named_count = 0
        self._named_since = 0.0
        self._ranks_from_start: list[int] = []

    def _begin_block(self) -> None:
        self._block_seconds, self._block_steps, self._block_start = 0.0, 0, 0
        self._block_lags: dict[str, dict[int, float]] = {}

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate the times of one step."""
        if record.event is START:
            self.__post_init__()
        step_time = record.values["step_time"]
        if record.event is not STEP or not 0.0 < step_time < 1e9:
            return None
        if record.spread:
            for name in TIME_SIGNALS:
                self._add_lag(name, record)
        self._block_seconds += step_time
        self._block_steps += 1
        if self._block_steps == 1:
            self._block_start = record.step
        if not self._block_lags or self._block_seconds < BLOCK_SECONDS:
            return None
        seconds_per_step = self._block_seconds / self._block_steps
        evaluated = [name for name in self._complete_block() if name in record.spread]
        if not evaluated:
            return None
        lag, name = max((self._own_lag_share(name, evaluated), name) for name in evaluated)
        outlier = self._slowest_ranks[name]
        self._count += 1
        self._update_named(outlier.rank if lag > self.notable else None, record.time)
        if lag <= self.notable or outlier.rank is None:
            return CLEAR if outlier.is_full else None
        spread = record.spread[name]
        others = mean_of_others(spread.count, spread.mean, spread.max)
        return Finding(
            summary=f"Rank {outlier.rank} {TIME_SIGNALS[name]} than the other ranks: by "
            f"{lag:.0%} of the step time, {lag * seconds_per_step:.2g} s a step.",
            evidence={
                "signal": name,
                "median_lag_share_of_step_time": lag,
                "rank_hours_lost_per_day": 24.0 * lag * (spread.count - 1),
                "slowest_rank_seconds": spread.max,
                "mean_seconds_of_others": others,
                "step_time_seconds": step_time,
                "ranks_compared": float(spread.count),
            },
            severity=Severity.WARNING if self._is_costly(lag, record.time) else None,
            onset_step=min(outlier.since_step, record.step),
            rank=outlier.rank,
        )

    def _update_named(self, rank: int | None, time: float) -> None:
        """Update for how many blocks in a row, and since when, `rank` is named."""
        if rank != self._named_rank:
            self._named_rank, self._named_count, self._named_since = rank, 0, time
        self._named_count += 1
        if rank is not None and self._count <= FIRST_BLOCKS:
            self._ranks_from_start.append(rank)

    def _is_costly(self, lag: float, time: float) -> bool:
        is_lasting = (
            self._named_count >= LASTING_BLOCKS and self._named_rank not in self._ranks_from_start
        )
        is_long = lag > self.lasting or time - self._named_since >= LASTING_SECONDS
        return lag > self.costly or (is_lasting and is_long)

    def _add_lag(self, name: str, record: Record) -> None:
        """Add the seconds by which the slowest rank of a step is slower than the others."""
        spread = record.spread.get(name)
        if spread is None or spread.count < 2 or not 0.0 <= spread.min <= spread.max < 1e9:
            return
        lag = spread.max - mean_of_others(spread.count, spread.mean, spread.max)
        lags = self._block_lags.setdefault(name, {})
        lags[spread.max_rank] = lags.get(spread.max_rank, 0.0) + lag

    def _complete_block(self) -> list[str]:
        """Evaluate the slowest rank of the steps since the last block, by signal."""
        for name, lags in self._block_lags.items():
            rank = max(lags, key=lags.__getitem__)
            # Two ranks that are slower by turns are not slow.
            second = max((lag for other, lag in lags.items() if other != rank), default=0.0)
            share = min(1.0, (lags[rank] - second) / self._block_seconds)
            named = rank if share >= MIN_SHARE * self.notable else NO_RANK
            self._slowest_ranks[name].add(named, share, self._block_start)
        evaluated = list(self._block_lags)
        self._begin_block()
        return evaluated

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
