"""A case book, a cause to name, and notifications to feed it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace
from typing import ClassVar

from support.results import incident

from sentinel.causes._evidence import symptom_evidence
from sentinel.model.diagnosis import CaseContext, Evidence
from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.cases import CaseBook


class Storm:
    """Explains four detectors, and is named by two of them."""

    title: ClassVar[str] = "storm"
    explains: ClassVar[frozenset[str]] = frozenset({"wind", "rain", "dark", "run_died"})
    severity: ClassVar[Severity | None] = Severity.CRITICAL

    def clues(self, scene: CaseContext) -> Iterable[Evidence]:
        yield from symptom_evidence(scene.symptoms.get("wind"), 0.5)
        yield from symptom_evidence(scene.symptoms.get("rain"), 0.5)
        if scene.metadata.get("season") == "autumn":
            yield Evidence(0.2, "It is autumn.")

    def remedy(self, scene: CaseContext) -> str:
        return f"Stay in for {scene.values.get('hours', 0):g} hours."


def found(detector, severity=Severity.WARNING, onset=90, **changes):
    told = replace(incident(detector, severity), onset_step=onset, **changes)
    return Notification(NotificationReason.OPENED, told, 100, 0.0)


def over(detector, step=400):
    ended = replace(
        incident(detector, Severity.WARNING),
        state=IncidentState.RESOLVED,
        resolved_step=step,
        resolved_time=float(step),
    )
    return Notification(NotificationReason.RESOLVED, ended, step, float(step))


@dataclass
class House:
    """A book and the run that it hears of."""

    book: CaseBook
    step: int = 100

    def hear(self, *news, event=Event.STEP, values=None, facts=None, steps=1):
        told = ()
        for _ in range(steps):
            self.step += event is Event.STEP
            record = Record(
                "grpo-7b", WHOLE_RUN, self.step, float(self.step), event, values or {}, facts or {}
            )
            told += self.book.update(record, news)
        return [(page.reason, page.incident.key.detector) for page in told]

    def page(self):
        (page,) = self.book.current_notifications()
        return page
