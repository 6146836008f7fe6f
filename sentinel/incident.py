"""Incidents: findings folded into the few episodes worth telling a person about.

An incident is pending while a finding has been made but not yet often enough, firing once a page
about it exists, and resolved when the detector has been calm for long enough. There is one page
when it fires and one when it resolves. The book holds no clock: time and step are what the records
say, so a replay folds exactly as the live run did.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from enum import Enum

from sentinel.finding import Calm, Detector, Finding, Opinion, Severity
from sentinel.record import Record


class State(Enum):
    """Where an incident stands in its life."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class Reason(Enum):
    """Why a page is sent. There is no page without a reason."""

    OPENED = "opened"
    WORSENED = "worsened"
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class Key:
    """What makes two findings the same incident; `rank` is WHOLE_RUN unless a rank was judged."""

    run: str
    rank: int
    detector: str


@dataclass(slots=True)
class Incident:
    """One episode of one detector on one run.

    `onset_step` is where it began, `opened_step` where its page was due, `resolved_step` where it
    was over. Times are in seconds since the epoch, of the records that moved it.
    """

    key: Key
    episode: int
    severity: Severity
    signal: str
    remedy: str
    finding: Finding
    onset_step: int
    opened_step: int
    opened_time: float
    state: State = State.PENDING
    resolved_step: int | None = None
    resolved_time: float | None = None
    findings: int = 1
    calm: int = 0

    @property
    def name(self) -> str:
        """Identity that is the same after every restart: run, detector, rank where any, episode."""
        scope = "" if self.key.rank < 0 else f"/rank{self.key.rank}"
        return f"{self.key.run}/{self.key.detector}{scope}#{self.episode}"


@dataclass(frozen=True, slots=True)
class Page:
    """What a person is told, and why; unsent and unworded."""

    reason: Reason
    incident: Incident
    step: int
    time: float

    @property
    def name(self) -> str:
        """Identity of this very page: a page with a name that was sent is never sent again."""
        severity = self.incident.severity.value
        suffix = f"-{severity}" if self.reason is Reason.WORSENED else ""
        return f"{self.incident.name}:{self.reason.value}{suffix}"


@dataclass
class IncidentBook:
    """Open incidents by key, and the number of the last episode of each.

    `patience` findings in a row make a pending incident fire (detectors bring their own patience,
    so the default is 1); `calm_records` calm opinions in a row resolve it. Evaluations, saves and
    ticks count as records like steps do.
    """

    patience: int = 1
    calm_records: int = 16
    open: dict[Key, Incident] = field(default_factory=dict)
    episodes: dict[Key, int] = field(default_factory=dict)

    def fold(self, key: Key, record: Record, opinion: Opinion, detector: Detector) -> Page | None:
        """Fold one opinion of `detector` in; return the page that is due because of it, if any."""
        if opinion is None:
            return None
        known = self.open.get(key)
        if isinstance(opinion, Calm):
            return self._calm(known, record) if known else None
        loud = opinion.severity or detector.severity
        if known is None:
            known = self._begin(key, record, opinion, detector, loud)
        else:
            known.findings += 1
        before = known.severity
        worse = loud.order < before.order
        known.finding, known.calm = opinion, 0
        if worse:
            known.severity = loud
        if known.state is State.PENDING:
            return self._fire(known, record) if known.findings >= self.patience else None
        if worse and before is Severity.INFO:
            # Nobody was told of it so far: to people it opens now.
            return self._fire(known, record)
        return _page(Reason.WORSENED, known, record) if worse else None

    def _begin(
        self, key: Key, record: Record, finding: Finding, detector: Detector, severity: Severity
    ) -> Incident:
        self.episodes[key] = episode = self.episodes.get(key, 0) + 1
        onset = record.step if finding.onset_step is None else finding.onset_step
        incident = Incident(
            key=key,
            episode=episode,
            severity=severity,
            signal=detector.signal,
            remedy=detector.remedy,
            finding=finding,
            onset_step=onset,
            opened_step=record.step,
            opened_time=record.time,
        )
        self.open[key] = incident
        return incident

    def _fire(self, known: Incident, record: Record) -> Page:
        known.state = State.FIRING
        known.opened_step, known.opened_time = record.step, record.time
        return _page(Reason.OPENED, known, record)

    def _calm(self, known: Incident, record: Record) -> Page | None:
        known.calm += 1
        if known.state is State.PENDING:
            # A pending incident was never told to anybody, so it ends without a word.
            del self.open[known.key]
            self.episodes[known.key] -= 1
            return None
        if known.calm < self.calm_records:
            return None
        known.state = State.RESOLVED
        known.resolved_step, known.resolved_time = record.step, record.time
        del self.open[known.key]
        return _page(Reason.RESOLVED, known, record)


def _page(reason: Reason, incident: Incident, record: Record) -> Page:
    # A copy: the page tells of this moment, while the book's incident lives on.
    return Page(reason, replace(incident), record.step, record.time)
