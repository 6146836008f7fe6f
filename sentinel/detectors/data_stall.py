"""Data stall: training waits for its data loader.

Formula
    wait     = time waited for the next batch; of several ranks the longest
    share    = wait / step time
    alone    = one rank waits longest in two thirds of the last `window` / 2 records with a share
               over `notable`; then the wait of each record is that of more than one rank: the
               second longest, at most mean + std sqrt(n - 1) of the n others than the longest
    Finding  = the median share of the last `window` records is over `notable`
    warning  = and the median step time of these records is `slower` times that of the best `window`
               records with a share below half of `notable`

Units
    `notable`: fraction of the step time. `window`: records. `slower`: plain factor.

Source
    A loader that is too slow leaves the GPU idle, and with it every rank. If storage is slow for
    some files, another rank waits at each step, and all others wait for it. If it is the same rank
    each time, the detector straggler names it. Many small trainings wait for data from beginning to
    end, which their authors accept; a warning therefore needs a loader that was fast enough before.
    The bound is Samuelson's inequality (1968, JASA 63, 1522-1525).

Defaults
    `notable` 0.4 and `slower` 1.5: a step that takes 1.5 times as long and mostly waits. `window`
    32 ignores the first batches of an epoch, which wait for the workers to start. Steps with a save
    or an evaluation are not evaluated. On 100 synthetic runs of 300 to 3,000 steps, half of them
    with a loader that is always too slow and all with epochs, there were no warnings and 42 info
    findings. A wait of one and of three usual steps was a warning in 100 of 100 runs each, after 18
    and 16 records. Of 300 synthetic runs of 2 to 64 ranks one of which waits at each step, 4 had a
    finding; of 600 in which another rank waits each time, in 55 to 95 % of the steps, all had a
    warning.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite, sqrt

from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.record import EVAL, PHASE, SAVE, START, STEP, Record, Spread
from sentinel.stats.k_of_n import KOfN
from sentinel.stats.persistent_outlier import PersistentOutlier, stats_of_others

ALONE_SHARE = 2 / 3
"""Fraction of the records that name the rank which waits alone; a late batch of another rank or
the start of an epoch names others."""

KEEPS_UP_SHARE = 0.5
"""Fraction of `notable` below which the loader counts as fast enough."""

INTERRUPTING_EVENTS = frozenset({SAVE, EVAL, PHASE})


@dataclass
class DataStall(DetectorDefaults):
    """Evaluates `data_wait` against `step_time`."""

    notable: float = 0.4
    slower: float = 1.5
    window: int = 32

    steps_with = frozenset({"data_wait"})
    signal = "data_wait"
    severity = Severity.INFO
    remedy = (
        "Raise {number of data loader workers}, and prefetch more batches (`prefetch_factor`, "
        "`persistent_workers`). Check the storage that the loader reads from. Tokenize the "
        "dataset before the training."
    )

    def __post_init__(self) -> None:
        self._longest_shares, self._second_shares = KOfN(self.window), KOfN(self.window)
        # As many records over `notable` as the median of the window needs to be over it.
        self._longest_ranks = PersistentOutlier((self.window + 1) // 2, ALONE_SHARE)
        self._step_times = KOfN(self.window, below=True)
        self._best_step_time = inf
        self._was_interrupted = False

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate the data wait of one step."""
        if record.event is START:
            self.__post_init__()
        wait, time = record.values.get("data_wait"), record.values.get("step_time")
        if record.event is not STEP:
            self._was_interrupted |= record.event in INTERRUPTING_EVENTS
            return None
        if wait is None or time is None:
            return None
        is_interrupted, self._was_interrupted = self._was_interrupted, False
        if is_interrupted or not 0.0 < time < 1e9 or not 0.0 <= wait < 1e9:
            return None
        return self._evaluate(wait, time, record.spread.get("data_wait"), record.step)

    def _evaluate(
        self, longest: float, time: float, spread: Spread | None, step: int
    ) -> DetectorOutput:
        second = _second_longest(longest, spread)
        wait, shares = longest, self._longest_shares
        longest_share, second_share = min(1.0, longest / time), min(1.0, second / time)
        if spread is not None and longest_share > self.notable:
            self._longest_ranks.add(spread.max_rank, longest_share, step)
        waits = self._longest_shares.add(longest_share, self.notable, step)
        several_wait = self._second_shares.add(second_share, self.notable, step)
        if self._longest_ranks.rank is not None:
            waits, wait, shares = several_wait, second, self._second_shares
        is_faster = self._step_times.add(time, self._best_step_time, step)
        if is_faster and shares.median <= KEEPS_UP_SHARE * self.notable:
            self._best_step_time = min(self._best_step_time, self._step_times.median)
        if not waits:
            return None if waits is None else CLEAR
        wait_share, step_time = shares.median, self._step_times.median
        best = self._best_step_time
        is_slower = step_time > self.slower * best
        than_best = f", which is {step_time / best:.2g} times the best" if is_slower else ""
        instead = f" instead of {best:.3g} s" if is_slower else ""
        evidence = {
            "data_wait_share": wait_share,
            "data_wait_seconds": wait,
            "step_time_seconds": step_time,
        }
        if isfinite(best):
            evidence["best_step_time_seconds_median"] = best
        return Finding(
            summary=f"Training waits for data in {wait_share:.0%} of the step time{than_best}; "
            f"a step takes {step_time:.3g} s{instead}.",
            evidence=evidence,
            severity=Severity.WARNING if is_slower else None,
            onset_step=shares.onset,
        )


def _second_longest(longest: float, spread: Spread | None) -> float:
    """The time that more than one rank waits at most; that of the only rank if there is one."""
    if spread is None or spread.count < 2:
        return longest
    mean, std = stats_of_others(spread.count, spread.mean, spread.std, spread.max)
    return min(longest, mean + std * sqrt(spread.count - 2))
