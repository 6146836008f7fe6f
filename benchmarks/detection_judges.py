"""Who judges a run: our engine with all its detectors as they are, or a peer's rule."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field

from sentinel.discover import classes
from sentinel.engine import Engine
from sentinel.finding import Severity
from sentinel.incident import Page, Reason
from sentinel.record import Record


@dataclass
class Alarm:
    """An incident: from which step on it was noted, told as a warning, told as critical.

    `began` is the step it says it began at, `cause` the name that a diagnosis gave it, and `window`
    how many points it speaks of, where it says.
    """

    name: str
    noted: int
    told: int | None = None
    critical: int | None = None
    began: int | None = None
    cause: str = ""
    window: int = 100


@dataclass
class Judged:
    """What one judge said of one run."""

    alarms: list[Alarm] = field(default_factory=list)

    @property
    def told(self) -> list[Alarm]:
        return [alarm for alarm in self.alarms if alarm.told is not None]


Judge = Callable[[Iterable[Record]], Judged]


def ours(records: Iterable[Record]) -> Judged:
    """Every detector at its defaults, through the engine, as `sentinel replay` does.

    Raises RuntimeError where a detector failed: its silence would be counted for calm.
    """
    engine = Engine(classes("detectors"))
    alarms: dict[str, Alarm] = {}
    for record in records:
        for page in engine.feed(record).pages:
            if page.reason is not Reason.RESOLVED:
                _hear(alarms, page)
    if engine.errors:
        raise RuntimeError(f"detectors failed: {sorted(engine.errors)}")
    return Judged(list(alarms.values()))


def _hear(alarms: dict[str, Alarm], page: Page) -> None:
    incident = page.incident
    new = Alarm(incident.key.detector, page.step, began=incident.onset_step)
    alarm = alarms.setdefault(incident.name, new)
    window = incident.finding.evidence.get("points")
    if isinstance(window, float):
        alarm.window = int(window)
    # Pages have a diagnosis from the day on that there is one.
    alarm.cause = str(getattr(getattr(page, "diagnosis", None), "cause", "") or alarm.cause)
    if incident.severity is not Severity.INFO and alarm.told is None:
        alarm.told = page.step
    if incident.severity is Severity.CRITICAL and alarm.critical is None:
        alarm.critical = page.step
