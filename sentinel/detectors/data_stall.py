"""Data stall: training waits for its data.

Formula
    share    = time waited for the next batch / time of the step
    Finding  = the median share of the last `window` records is over `notable`
    warning  = and the median of those steps takes `slower` times as long as in the best `window`
               records in which the share was under half of `notable`

Units
    `notable`: share of the time of a step, of 1. `window`: records. `slower`: plain factor.

Source
    A loader that cannot keep up leaves the GPU idle, and every rank with it. Many a small training
    waits for its data from beginning to end, and is as its author wants it: what is told is a
    loader that did keep up, and no longer does.

Defaults
    `notable` 0.4 and `slower` 1.5: a step that takes half as long again, and most of that waiting.
    `window` 32 lets the first batches of an epoch, which wait for the workers to begin, pass. A
    step in which the run saved or evaluated is not judged. On 100 synthetic runs of 300 to 3,000
    steps, half of them with a loader that never keeps up and all with epochs, there was no
    warning, and 42 were noted; a wait of one and of three usual steps was a warning in 100 of 100
    runs each, after 18 and 16 records.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import inf, isfinite
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record
from sentinel.stats.k_of_n import KOfN

KEEPS_UP_SHARE = 0.5
"""Share of `notable` under which a loader keeps up with the training."""

INTERRUPTING_EVENTS = frozenset({Event.SAVE, Event.EVAL, Event.PHASE})


@dataclass
class DataStall:
    """Judges `data_wait` against `step_time`."""

    notable: float = 0.4
    slower: float = 1.5
    window: int = 32

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "data_wait"
    severity: ClassVar[Severity] = Severity.INFO
    remedy: ClassVar[str] = (
        "Give the loader more workers (num_workers, in transformers dataloader_num_workers) and "
        "let it work ahead (prefetch_factor, persistent_workers); look at the storage it reads "
        "from, and tokenize the dataset before the training."
    )

    def __post_init__(self) -> None:
        self._reset()

    def _reset(self) -> None:
        self._wait_shares = KOfN(self.window)
        self._step_times = KOfN(self.window, below=True)
        self._best_step_time = inf
        self._was_interrupted = False
        self._onset_step: int | None = None

    def update(self, record: Record) -> DetectorOutput:
        """Judge one step's wait."""
        if record.event is Event.START:
            self._reset()
        wait, time = record.values.get("data_wait"), record.values.get("step_time")
        if record.event is not Event.STEP:
            self._was_interrupted |= record.event in INTERRUPTING_EVENTS
            return None
        if wait is None or time is None:
            return None
        broken, self._was_interrupted = self._was_interrupted, False
        if broken or not 0.0 < time < 1e9 or not 0.0 <= wait < 1e9:
            return None
        return self._evaluate(min(1.0, wait / time), time, wait, record.step)

    def _evaluate(self, share: float, time: float, wait: float, step: int) -> DetectorOutput:
        waited = self._wait_shares.add(share, KEEPS_UP_SHARE * self.notable)
        quicker = self._step_times.add(time, self._best_step_time)
        if share <= self.notable:
            self._onset_step = None
        elif self._onset_step is None:
            self._onset_step = step
        if not waited and not quicker:
            return Clear() if self._wait_shares.is_full else None
        usual, now = self._wait_shares.median, self._step_times.median
        if usual <= KEEPS_UP_SHARE * self.notable:
            self._best_step_time = min(self._best_step_time, now)
        if usual <= self.notable:
            return Clear()
        slowed = now > self.slower * self._best_step_time
        than = f", {now / self._best_step_time:.2g} times as long as its best" if slowed else ""
        return Finding(
            summary=f"Training waits for data {usual:.0%} of the time; "
            f"a step takes {now:.3g} s{than}.",
            evidence={"wait_share": usual, "data_wait": wait, "step_seconds": now}
            | (
                {"best_step_seconds": self._best_step_time}
                if isfinite(self._best_step_time)
                else {}
            ),
            severity=Severity.WARNING if slowed else None,
            onset_step=self._onset_step,
        )
