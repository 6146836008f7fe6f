"""Story: what a log tells of a run, as the agent would have told it."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field

from sentinel.model.finding import Severity
from sentinel.model.incident import Incident, Onset
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Record
from sentinel.pipeline.engine import Engine
from sentinel.pipeline.onset import RecentSignals


@dataclass
class ReplayedIncident:
    """One incident in its last state, with the last page that told of its trouble.

    `onset` is when it was found to have begun, looking back from where it opened. `case` is the
    name of the case that people were told of it by; None of what nobody was told of.
    """

    incident: Incident
    notification: Notification
    onset: Onset | None = None
    case_name: str | None = None


STEPS_PER_BLOCK = 1024
"""Steps that share one number, a bit for each."""


@dataclass
class DistinctStepCounter:
    """Counts different steps, of a log of any length: ten million in a row take 3 MB.

    >>> steps = Steps()
    >>> for step in (5, 3, 5, -2, 10**9):
    ...     steps.add(step)
    >>> steps.count
    4
    """

    bitmaps: dict[int, int] = field(default_factory=dict)

    def add(self, step: int) -> None:
        """Take a step, in any order and however often."""
        page, at = divmod(step, STEPS_PER_BLOCK)
        self.bitmaps[page] = self.bitmaps.get(page, 0) | 1 << at

    @property
    def count(self) -> int:
        """How many different ones there were."""
        return sum(page.bit_count() for page in self.bitmaps.values())


@dataclass
class ReplayResult:
    """What a replay found, and how much it read. `cases` are the last that was known of each.

    `remark` is what a person should know of how the log was read; mostly nothing.
    """

    incidents: list[ReplayedIncident] = field(default_factory=list)
    cases: list[Notification] = field(default_factory=list)
    records: int = 0
    skipped: int = 0
    note: str = ""
    steps: int = 0
    failed_detectors: list[str] = field(default_factory=list)
    """Detectors that failed while judging: what they would have found is not known."""

    @property
    def worst_severity_order(self) -> int:
        """Order of the loudest severity; more than any where nothing was found."""
        alone = [told.incident.severity.order for told in self.incidents]
        together = [case.incident.severity.order for case in self.cases]
        return min(alone + together, default=len(Severity))

    @property
    def diagnosed_cases(self) -> Iterator[Notification]:
        """Cases whose cause has a name."""
        return (case for case in self.cases if case.diagnosis is not None)

    def incidents_in(self, case: Notification) -> list[Incident]:
        """The incidents of a case in their last state."""
        return [told.incident for told in self.incidents if told.case_name == case.incident.name]

    def resolved_step(self, case: Notification) -> int | None:
        """The step at which the last incident of the case was over; None while one is not."""
        ends = [incident.resolved_step for incident in self.incidents_in(case)]
        known = [end for end in ends if end is not None]
        return max(known) if known and len(known) == len(ends) else None


def replay_records(source: Iterable[Record], engine: Engine) -> ReplayResult:
    """Run the records through the engine; every incident once, in the order they opened."""
    story, steps = ReplayResult(), DistinctStepCounter()
    told: dict[str, ReplayedIncident] = {}
    cases: dict[str, Notification] = {}
    past = RecentSignals({make().signal for make in engine.detector_factories.values()})
    for record in source:
        story.records += 1
        steps.add(record.step)
        if record.rank == WHOLE_RUN:
            past.update(record)
        verdict = engine.process(record)
        for page in verdict.notifications:
            _add_notification(told, page, past)
        cases |= {page.incident.name: page for page in verdict.case_notifications}
    for incident in engine.incident_book.open_incidents.values():
        if incident.name in told:
            told[incident.name].incident = incident
    for name, case in cases.items():
        for incident in (case.incident, *case.others):
            told[incident.name].case_name = name
    story.incidents, story.cases, story.steps = (
        list(told.values()),
        list(cases.values()),
        steps.count,
    )
    story.skipped = getattr(source, "skipped", 0)
    story.note = getattr(source, "remark", "")
    story.failed_detectors = sorted(engine.error_counts)
    return story


def _add_notification(
    incidents: dict[str, ReplayedIncident], notification: Notification, signals: RecentSignals
) -> None:
    name = notification.incident.name
    if notification.reason is NotificationReason.RESOLVED and name in incidents:
        incidents[name].incident = notification.incident
        return
    onset = incidents[name].onset if name in incidents else None
    if onset is None and notification.incident.severity is not Severity.INFO:
        onset = signals.estimate_onset(notification.incident)
    incidents[name] = ReplayedIncident(notification.incident, notification, onset)
