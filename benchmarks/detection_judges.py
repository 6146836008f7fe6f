"""Who judges a run: our engine with all its detectors as they are, or a peer's rule."""

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
    """An incident: from which step on it was noted, told as a warning, told as critical.

    `began` is the step it says it began at, and `window` how many points it speaks of, where it
    says.
    """

    name: str
    noted: int
    told: int | None = None
    critical: int | None = None
    began: int | None = None
    window: int = 100


@dataclass
class Told:
    """A case that people were told of at `step`: how often in all, and what it came to in the end.

    `cause` is what was named as standing behind it, `root` the detector of what began first of what
    speaks for that.
    """

    step: int
    pages: int = 0
    critical: bool = False
    cause: str = ""
    root: str = ""


@dataclass
class Judged:
    """What one judge said of one run: incidents, and the cases that people were told of."""

    alarms: list[Alarm] = field(default_factory=list)
    cases: list[Told] = field(default_factory=list)

    @property
    def told(self) -> list[Alarm]:
        return [alarm for alarm in self.alarms if alarm.told is not None]


Judge = Callable[[Iterable[Record]], Judged]


def ours(records: Iterable[Record]) -> Judged:
    """Every detector at its defaults, through the engine, as `sentinel replay` does.

    Raises RuntimeError where a detector failed: its silence would be counted for calm.
    """
    engine = Engine(load_classes("detectors"), case_book=CaseBook(build_causes()))
    alarms: dict[str, Alarm] = {}
    cases: dict[str, Told] = {}
    said: dict[str, str] = {}
    for record in records:
        verdict = engine.process(record)
        said |= {finding.summary: name for name, finding in verdict.findings.items()}
        for page in verdict.notifications:
            if page.reason is not NotificationReason.RESOLVED:
                _hear(alarms, page)
        for page in verdict.case_notifications:
            if page.reason is not NotificationReason.RESOLVED:
                _fold(cases, page, said)
    if engine.error_counts:
        raise RuntimeError(f"detectors failed: {sorted(engine.error_counts)}")
    return Judged(list(alarms.values()), list(cases.values()))


def _fold(cases: dict[str, Told], page: Notification, said: dict[str, str]) -> None:
    """Take a page of a case over; `said` are detectors by what they found."""
    case = cases.setdefault(page.incident.name, Told(page.step))
    case.pages += page.reason in (NotificationReason.OPENED, NotificationReason.ESCALATED)
    case.critical |= page.incident.severity is Severity.CRITICAL
    first = min((page.incident, *page.others), key=lambda incident: incident.onset_step)
    case.root = first.key.detector
    if page.diagnosis is not None:
        case.cause = page.diagnosis.cause
        clues = [said.get(clue.text, "") for clue in page.diagnosis.evidence]
        case.root = next(filter(None, clues), case.root)


def _hear(alarms: dict[str, Alarm], page: Notification) -> None:
    incident = page.incident
    new = Alarm(incident.key.detector, page.step, began=incident.onset_step)
    alarm = alarms.setdefault(incident.name, new)
    window = incident.finding.evidence.get("points")
    if isinstance(window, float):
        alarm.window = int(window)
    if incident.severity is not Severity.INFO and alarm.told is None:
        alarm.told = page.step
    if incident.severity is Severity.CRITICAL and alarm.critical is None:
        alarm.critical = page.step
