"""A case book, a cause for it, and notifications to update it with."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from support.results import make_incident

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.cases import CaseBook


class Storm:
    """A cause that explains four detectors; two of them are evidence of it."""

    title: ClassVar[str] = "storm"
    explains: ClassVar[frozenset[str]] = frozenset({"wind", "rain", "dark", "run_died"})
    severity: ClassVar[Severity | None] = Severity.CRITICAL

    def evidence(self, context: CaseContext) -> Iterable[Evidence]:
        yield from symptom_evidence(context.symptoms.get("wind"), 0.5)
        yield from symptom_evidence(context.symptoms.get("rain"), 0.5)
        if context.metadata.get("season") == "autumn":
            yield Evidence(0.2, "It is autumn.")

    def remedy(self, context: CaseContext) -> str:
        return f"Stay in for {context.values.get('hours', 0):g} hours."


def opened(detector, severity=Severity.WARNING, onset=90, **changes):
    incident = replace(make_incident(detector, severity), onset_step=onset, **changes)
    return Notification(NotificationReason.OPENED, incident, 100, 0.0)


def resolved(detector, step=400):
    incident = replace(
        make_incident(detector, Severity.WARNING),
        state=IncidentState.RESOLVED,
        resolved_step=step,
        resolved_time=float(step),
    )
    return Notification(NotificationReason.RESOLVED, incident, step, float(step))


@dataclass
class CaseBookDriver:
    """Updates a case book with the records of one run, step by step; times are in seconds."""

    book: CaseBook
    step: int = 100
    began_at: float = 0.0
    step_time: float = 1.0

    def update(self, *changes, event=Event.STEP, values=None, metadata=None, steps=1):
        """Reason and lead detector of each notification that the changes lead to."""
        notifications = ()
        for _ in range(steps):
            self.step += event is Event.STEP
            record = Record(
                *(
                    "grpo-7b",
                    WHOLE_RUN,
                    self.step,
                    self.began_at + self.step * self.step_time,
                    event,
                ),
                values or {},
                metadata or {},
            )
            notifications += self.book.update(record, changes)
        return [(each.reason, each.incident.key.detector) for each in notifications]

    def set_onset(self, detector, onset, undated=()):
        """The notifications that an estimated onset of the incident of a detector leads to."""
        name = make_incident(detector).name
        record = Record("grpo-7b", WHOLE_RUN, 0, 0.0, Event.ONSET)
        _, notifications = self.book.set_onset(record, name, onset, undated)
        return notifications

    def current_notification(self):
        """The notification of the only open case."""
        (notification,) = self.book.current_notifications()
        return notification
