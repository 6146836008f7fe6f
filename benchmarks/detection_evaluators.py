"""Evaluators of a run: the engine with all detectors at defaults, or the rule of a peer."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sentinel.config.plugins import load_classes
from sentinel.config.settings import build_causes
from sentinel.model.finding import Severity
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import Record
from sentinel.pipeline.cases import CaseBook
from sentinel.pipeline.engine import Engine


@dataclass
class Alarm:
    """An incident: the steps at which it was opened, reached warning, and reached critical.

    `began` is its onset step, `window` the number of points it covers, where known.
    """

    name: str
    opened: int
    warned: int | None = None
    critical: int | None = None
    began: int | None = None
    window: int = 100


@dataclass
class NotifiedCase:
    """A case that was notified at `step`: the number of notifications, and its final state.

    `cause` is the diagnosed cause, `root` the detector of the earliest evidence for it.
    """

    step: int
    notifications: int = 0
    critical: bool = False
    cause: str = ""
    root: str = ""


@dataclass
class Evaluation:
    """Result of one evaluator on one run: incidents, and the notified cases."""

    alarms: list[Alarm] = field(default_factory=list)
    cases: list[NotifiedCase] = field(default_factory=list)

    @property
    def warned(self) -> list[Alarm]:
        return [alarm for alarm in self.alarms if alarm.warned is not None]


Evaluator = Callable[[Iterable[Record]], Evaluation]


def evaluate_with_engine(records: Iterable[Record]) -> Evaluation:
    """Every detector at its defaults, through the engine, as in `sentinel replay`.

    Raises RuntimeError if a detector failed, since it would count as healthy.
    """
    engine = Engine(load_classes("detectors"), case_book=CaseBook(build_causes()))
    alarms: dict[str, Alarm] = {}
    cases: dict[str, NotifiedCase] = {}
    detector_by_summary: dict[str, str] = {}
    for record in records:
        result = engine.process(record)
        detector_by_summary |= {finding.summary: name for name, finding in result.findings.items()}
        for notification in result.notifications:
            if notification.reason is not NotificationReason.RESOLVED:
                _add_notification(alarms, notification)
        for notification in result.case_notifications:
            if notification.reason is not NotificationReason.RESOLVED:
                _add_case_notification(cases, notification, detector_by_summary)
    if engine.error_counts:
        raise RuntimeError(f"detectors failed: {sorted(engine.error_counts)}")
    return Evaluation(list(alarms.values()), list(cases.values()))


def _add_case_notification(
    cases: dict[str, NotifiedCase], notification: Notification, detector_by_summary: dict[str, str]
) -> None:
    """Add a notification of a case; `detector_by_summary` are detectors by finding summary."""
    case = cases.setdefault(notification.incident.name, NotifiedCase(notification.step))
    case.notifications += notification.reason in (
        NotificationReason.OPENED,
        NotificationReason.ESCALATED,
    )
    case.critical |= notification.incident.severity is Severity.CRITICAL
    first = min(
        (notification.incident, *notification.others), key=lambda incident: incident.onset_step
    )
    case.root = first.key.detector
    if notification.diagnosis is not None:
        case.cause = notification.diagnosis.cause
        detectors = [
            detector_by_summary.get(evidence.text, "")
            for evidence in notification.diagnosis.evidence
        ]
        case.root = next(filter(None, detectors), case.root)


def _add_notification(alarms: dict[str, Alarm], notification: Notification) -> None:
    incident = notification.incident
    new = Alarm(incident.key.detector, notification.step, began=incident.onset_step)
    alarm = alarms.setdefault(incident.name, new)
    window = incident.finding.evidence.get("points")
    if isinstance(window, float):
        alarm.window = int(window)
    if incident.severity is not Severity.INFO and alarm.warned is None:
        alarm.warned = notification.step
    if incident.severity is Severity.CRITICAL and alarm.critical is None:
        alarm.critical = notification.step
