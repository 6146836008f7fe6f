"""Run stalled: the processes are alive, but no step has completed for much longer than usual.

Formula
    limit      = max(`floor`, `times` * p99 of the last `window` step intervals)
    limit      = `patience_first` until `warmup` steps have completed
    limit      = max(limit, `patience_phase`) inside a declared phase, such as an evaluation
    limit      = max(limit, `times` * the longest gap between rows) for a followed log
    Finding    = idle > limit; critical once idle > `page_after` * limit

Units
    `floor`, `patience_first`, `patience_phase`: seconds. `window`, `warmup`: steps. `times`,
    `page_after`: plain numbers. Idle time: seconds since any rank completed a step.

    Named are ranks stopped by a signal, otherwise those with the least progress: by steps taken,
    then by whether the backward pass of the next step has begun, in which data-parallel ranks wait.
    If they wait for the ranks of a lost node, `node_lost` reports that instead.

Source
    Fault-tolerant launchers use learned limits of five times the usual interval without the first
    five steps; NCCL times out after ten minutes, gloo after thirty.

Defaults
    An undeclared evaluation or checkpoint stops the steps like a hang the first time it happens, so
    the finding is a warning first, and critical at `page_after` 4 times the limit: two minutes for
    a run with one-second steps. `warmup` 5 excludes compilation; a run that never completes a step
    is reported after `patience_first` 1800 seconds.
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
        "Start with the named ranks: a rank behind the others blocks all of them in the next "
        "collective. Take its stack (py-spy dump --pid), then check GPU, network and storage of "
        "its node."
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
        max_gap = float(record.attributes.get("max_gap_seconds", 0.0))
        idle = record.values["idle_seconds"]
        limit = max(self._limit_seconds(), self.times * max_gap)
        if idle <= limit:
            return Clear()
        ranks = record.attributes.get("straggler_ranks", "")
        return Finding(
            summary=f"{_subject_text(record.attributes, ranks)} passed step {record.step} for "
            f"{idle:.0f} s (limit {limit:.0f} s).",
            evidence={
                "seconds_since_last_step": idle,
                "limit_seconds": limit,
                "ranks_behind": ranks,
                "last_step_of_ranks_behind": record.attributes.get("straggler_step", ""),
            },
            severity=Severity.CRITICAL if idle > self.page_after * limit else Severity.WARNING,
            rank=None if record.attributes.get("all_behind") else int(ranks.split(",")[0]),
        )

    def _limit_seconds(self) -> float:
        if not self._step_intervals:
            return self.patience_first
        ordered = sorted(self._step_intervals)
        slowest = ordered[min(len(ordered) - 1, int(0.99 * len(ordered)))]
        limit = max(self.floor, self.times * slowest)
        return max(limit, self.patience_phase) if self._open_phases else limit


def _subject_text(attributes: Mapping[str, str], ranks: str) -> str:
    """The subject of the summary: the ranks that block the run, if they are known."""
    if attributes.get("all_behind"):
        return "No rank has"
    subject = f"Ranks {ranks.replace(',', ', ')} are" if "," in ranks else f"Rank {ranks} is"
    state = "stopped by a signal" if attributes.get("blocked_by") == "signal" else "behind"
    return f"{subject} {state}; no rank has"
