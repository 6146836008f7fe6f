"""Run stalled: alive, but no step for far longer than steps usually take.

Formula
    limit      = max(`floor`, `times` * p99 of the last `window` step intervals)
    limit      = `patience_first` before `warmup` steps were seen
    limit      = max(limit, `patience_phase`) inside a declared phase, such as an evaluation
    limit      = max(limit, `times` * pace) of a log that is followed and comes that far apart
    Finding    = idle > limit; critical once idle > `page_after` * limit

Units
    `floor`, `patience_first`, `patience_phase`: seconds. `window`, `warmup`: steps. `times`,
    `page_after`: plain numbers. The idle time is that since any rank last moved a step.

    Blamed are ranks that a signal stops, else those that got least far: by steps taken, then by
    whether the backward pass of the next step has begun, in which data-parallel peers wait. Where
    they wait for the ranks of a node that is lost, that is told instead, and by another detector.

Source
    Learned limits of five times the usual interval, the first five steps left out, are the habit
    of fault-tolerant launchers; NCCL itself gives up after ten minutes, gloo after thirty.

Defaults
    An evaluation or a checkpoint that nobody declared stops the steps as a hang does, the first
    time it happens. It is therefore a warning first, and a page at `page_after` 4 times the limit:
    two minutes for a run of one-second steps. `warmup` 5 leaves compilation out; a run that never
    makes a step is told of after `patience_first` 1800 seconds.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record


@dataclass
class RunStalled:
    floor: float = 30.0
    times: float = 5.0
    window: int = 200
    warmup: int = 5
    patience_first: float = 1800.0
    patience_phase: float = 1800.0
    page_after: float = 4.0

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "idle_seconds"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "Look at the ranks named first: a rank behind the others holds them all in the next "
        "collective. Take its stack (py-spy dump --pid), then its node's GPU, network and storage."
    )

    def __post_init__(self) -> None:
        self._step_intervals: deque[float] = deque(maxlen=self.window)
        self._step_count = 0
        self._last_step_time: float | None = None
        self._open_phases: list[str] = []

    def update(self, record: Record) -> DetectorOutput:
        if record.event is Event.HEARTBEAT:
            return self._evaluate(record)
        if record.event is Event.START:
            self._step_count, self._last_step_time = 0, None
            self._step_intervals.clear()
            self._open_phases.clear()
        elif record.event is Event.STEP:
            self._append_step(record.time)
        elif record.event is Event.PHASE:
            self._update_phases(record)
        return None

    def _append_step(self, time: float) -> None:
        self._step_count += 1
        if self._last_step_time is not None and self._step_count > self.warmup:
            self._step_intervals.append(max(0.0, time - self._last_step_time))
        self._last_step_time = time

    def _update_phases(self, record: Record) -> None:
        name = record.attributes.get("name", "")
        if record.attributes.get("edge") == "begin":
            self._open_phases.append(name)
        elif name in self._open_phases:
            self._open_phases.remove(name)

    def _evaluate(self, record: Record) -> DetectorOutput:
        if (
            not record.values.get("ranks_running")
            or record.attributes.get("blocked_by") == "node_lost"
        ):
            return None
        pace = float(record.attributes.get("max_gap_seconds", 0.0))
        idle, limit = record.values["idle_seconds"], max(self._limit_seconds(), self.times * pace)
        if idle <= limit:
            return Clear()
        behind = record.attributes.get("straggler_ranks", "")
        return Finding(
            summary=f"{_subject_text(record.attributes)} moved past step {record.step} for {idle:.0f} s "
            f"(limit {limit:.0f} s).",
            evidence={
                "idle_seconds": idle,
                "limit_seconds": limit,
                "behind": behind,
                "behind_step": record.attributes.get("straggler_step", ""),
            },
            severity=Severity.CRITICAL if idle > self.page_after * limit else Severity.WARNING,
            rank=None if record.attributes.get("all_behind") else int(behind.split(",")[0]),
        )

    def _limit_seconds(self) -> float:
        if not self._step_intervals:
            return self.patience_first
        ordered = sorted(self._step_intervals)
        slowest = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        limit = max(self.floor, self.times * slowest)
        return max(limit, self.patience_phase) if self._open_phases else limit


def _subject_text(facts: Mapping[str, str]) -> str:
    """The start of the sentence: who is to blame, as far as can be told."""
    if facts.get("all_behind"):
        return "No rank has"
    how = "is stopped by a signal" if facts.get("blocked_by") == "signal" else "is behind"
    return f"Rank {facts.get('behind', '')} {how}; none has"
