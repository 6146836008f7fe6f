"""Replays the records of a log through the pipeline."""

from __future__ import annotations

import gc
from array import array
from bisect import bisect_right
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from itertools import islice

from sentinel.model.finding import Severity
from sentinel.model.incident import Incident, Onset
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import EVAL, HEARTBEAT, STEP, STOP, UNKNOWN_OUTCOME, WHOLE_RUN, Record
from sentinel.model.record_batch import RecordBatch, RecordOrBatch, entry_ranks
from sentinel.pipeline.engine import Result
from sentinel.pipeline.onset_request import Points
from sentinel.pipeline.pipeline import Pipeline
from sentinel.signals.coverage import Coverage


@dataclass
class ReplayedIncident:
    """An incident in its last state, with the last notification of its problem.

    `case_name` is the name of its case; None for incidents of severity info.
    """

    incident: Incident
    notification: Notification
    case_name: str | None = None


_VALUE_EVENTS = frozenset({STEP, EVAL})

BLOCK_RECORDS = 256
"""Records that are read before they are evaluated together."""

OBJECTS_PER_COLLECTION = 1_000_000
"""New objects after which the garbage collector runs during a replay."""

STEPS_PER_BITMAP = 1024
"""Steps out of order that share one integer, a bit for each."""


@dataclass
class DistinctStepCounter:
    """Counts distinct steps in little memory: evenly spaced ones take none, others 12 bytes each.

    Ascending steps are ranges, each with a first step, a last step and a distance. Steps that come
    late and are in none are in `bitmaps`.

    >>> steps = DistinctStepCounter()
    >>> for step in (5, 3, 5, -2, 10**9):
    ...     steps.add(step)
    >>> steps.count
    4
    """

    count: int = 0
    _first: array[int] = field(default_factory=lambda: array("q"))
    _last: array[int] = field(default_factory=lambda: array("q"))
    _distance: array[int] = field(default_factory=lambda: array("q"))
    _bitmaps: dict[int, int] = field(default_factory=dict)

    def add(self, step: int) -> None:
        """Add a step; order and repetition do not matter."""
        if not self._last or step > self._last[-1]:
            self._append(step)
        elif not self._is_in_range(step):
            index, bit = divmod(step, STEPS_PER_BITMAP)
            bitmap = self._bitmaps.get(index, 0)
            self.count += not bitmap >> bit & 1
            self._bitmaps[index] = bitmap | 1 << bit

    def _append(self, step: int) -> None:
        self.count += 1
        distance = step - self._last[-1] if self._last else 1
        if self._last and (self._first[-1] == self._last[-1] or distance == self._distance[-1]):
            self._last[-1], self._distance[-1] = step, distance
            return
        self._first.append(step)
        self._last.append(step)
        self._distance.append(1)

    def _is_in_range(self, step: int) -> bool:
        index = bisect_right(self._first, step) - 1
        return (
            index >= 0
            and step <= self._last[index]
            and (step - self._first[index]) % self._distance[index] == 0
        )


@dataclass
class ReplayResult:
    """What a replay found, and how much it read. `cases` holds the last notification of each case.

    `skipped` counts lines without a record, `dropped` records that could not be processed.
    `notice` is a sentence about the choice of what to read; mostly empty. The findings of
    `failed_detectors`, which raised, are incomplete. `coverage` is what was monitored.
    `other_trainings` are names of writers of the same log whose rows were left out.
    """

    incidents: list[ReplayedIncident] = field(default_factory=list)
    cases: list[Notification] = field(default_factory=list)
    records: int = 0
    skipped: int = 0
    dropped: int = 0
    notice: str = ""
    steps: int = 0
    failed_detectors: list[str] = field(default_factory=list)
    coverage: Coverage = field(default_factory=Coverage)
    other_trainings: list[str] = field(default_factory=list)

    @property
    def worst_severity_order(self) -> int:
        """Order of the highest severity; `len(Severity)` if there is no incident."""
        single = [replayed.incident.severity.order for replayed in self.incidents]
        cases = [case.incident.severity.order for case in self.cases]
        return min(single + cases, default=len(Severity))

    @property
    def diagnosed_cases(self) -> Iterator[Notification]:
        """Cases with a diagnosis."""
        return (case for case in self.cases if case.diagnosis is not None)

    def incidents_in(self, case: Notification) -> list[Incident]:
        """The incidents of a case in their last state."""
        name = case.incident.name
        return [replayed.incident for replayed in self.incidents if replayed.case_name == name]

    def resolved_step(self, case: Notification) -> int | None:
        """The step at which the last incident of the case was resolved; None if one is open."""
        ends = [incident.resolved_step for incident in self.incidents_in(case)]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None


class Replay:
    """Processes the records of one log in order, and collects what `ReplayResult` holds.

    `on_result` is called with each result, in order. Incidents are dated when they open.
    """

    def __init__(
        self,
        pipeline: Pipeline,
        on_result: Callable[[Result], None] = lambda _: None,
    ) -> None:
        self._pipeline, self._on_result = pipeline, on_result
        pipeline.engine.estimate_onset = _estimate_onset
        self._result = ReplayResult(coverage=Coverage(pipeline.readable_signals))
        self._steps = DistinctStepCounter()
        self._incidents: dict[str, ReplayedIncident] = {}
        self._cases: dict[str, Notification] = {}
        self._last: RecordOrBatch | None = None

    @property
    def record_count(self) -> int:
        """Records that were processed, one for each rank."""
        return self._result.records

    def process(self, entries: Iterable[RecordOrBatch]) -> None:
        """Process some records, or batches of those of several ranks."""
        self._evaluate(map(self._count, entries))

    def _count(self, entry: RecordOrBatch) -> RecordOrBatch:
        self._result.records += len(entry_ranks(entry))
        self._steps.add(entry.step)
        # A heartbeat of a log that is followed has the time at which it was read.
        if isinstance(entry, RecordBatch) or entry.event is not HEARTBEAT:
            self._last = entry
        return entry

    def end(self, outcome: str = UNKNOWN_OUTCOME) -> None:
        """Process a STOP after the last record of a whole run, unless that is one.

        At the end of a run, detectors judge what they could not exclude before.
        """
        last = self._last
        if isinstance(last, Record) and last.rank == WHOLE_RUN and last.event is not STOP:
            attributes = {"outcome": outcome}
            stop = replace(last, event=STOP, values={}, attributes=attributes, spread={})
            self._evaluate([stop])

    def result(self, source: object = None) -> ReplayResult:
        """What was found so far, with what the reader `source` reports of its reading."""
        result, engine = self._result, self._pipeline.engine
        for incident in engine.incident_book.open_incidents.values():
            if incident.name in self._incidents:
                self._incidents[incident.name].incident = incident
        for name, case in self._cases.items():
            for incident in (case.incident, *case.others):
                self._incidents[incident.name].case_name = name
        result.incidents, result.cases = [*self._incidents.values()], [*self._cases.values()]
        result.steps = self._steps.count
        result.skipped = getattr(source, "skipped", 0)
        key = ("sentinel_dropped_records_total", "processing_failed")
        result.dropped = round(self._pipeline.counters.values.get(key, 0.0))
        result.notice = getattr(source, "notice", "")
        result.other_trainings = getattr(source, "other_trainings", [])
        result.failed_detectors = sorted(engine.error_counts)
        return result

    def _evaluate(self, entries: Iterable[RecordOrBatch]) -> None:
        for result in self._pipeline.process_block(entries):
            self._on_result(result)
            record = result.record
            if record.event in _VALUE_EVENTS and record.rank == WHOLE_RUN:
                self._result.coverage.update(record.values)
            if result.notifications or result.changed_incidents or result.case_notifications:
                self._add_changes(result)

    def _add_changes(self, result: Result) -> None:
        for notification in result.notifications:
            self._add_notification(notification)
        for incident in result.changed_incidents:
            replayed = self._incidents.get(incident.name)
            # No notification is sent of a larger value at severity info.
            if replayed is not None and incident.severity is Severity.INFO:
                replayed.notification = replace(replayed.notification, incident=incident)
        self._cases |= {each.incident.name: each for each in result.case_notifications}

    def _add_notification(self, notification: Notification) -> None:
        name, incidents = notification.incident.name, self._incidents
        if notification.reason is NotificationReason.RESOLVED and name in incidents:
            incidents[name].incident = notification.incident
            return
        incidents[name] = ReplayedIncident(notification.incident, notification)


def _estimate_onset(points: Points, suspected_step: int) -> Onset | None:
    from sentinel.pipeline.onset import estimate_onset  # noqa: PLC0415 - slow to load

    return estimate_onset(points, suspected_step)


def replay_records(
    source: Iterable[RecordOrBatch],
    pipeline: Pipeline,
    on_result: Callable[[Result], None] = lambda _: None,
) -> ReplayResult:
    """Process the records; every incident appears once, in the order of their opening.

    `on_result` is called with each result before the next record is processed.
    """
    replay = Replay(pipeline, on_result)
    entries = iter(source)
    while block := [*islice(entries, BLOCK_RECORDS)]:
        replay.process(block)
    replay.end()
    return replay.result(source)


@contextmanager
def rare_garbage_collection() -> Iterator[None]:
    """Collections visit all objects, and only detectors of users may create cycles per record."""
    former = gc.get_threshold()
    gc.set_threshold(OBJECTS_PER_COLLECTION, *former[1:])
    try:
        yield
    finally:
        gc.set_threshold(*former)
