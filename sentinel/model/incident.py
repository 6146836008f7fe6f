"""Incidents: findings folded into the few episodes worth telling a person about.

An incident is pending while a finding has been made but not yet often enough, firing once a page
about it exists, and resolved when the detector has been calm for long enough. One that comes back
soon after is the same episode, and has flapped. There is one page when it fires, and one when it
is over for good. The book holds no clock: time and step are what the records say, so a replay
folds exactly as the live run did.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from enum import Enum

from sentinel.model.diagnosis import Diagnosis
from sentinel.model.finding import Clear, Detector, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record

MAX_CHECKPOINTS_PER_RUN = 64
"""Checkpoints of a run that are remembered, the newest."""


class IncidentState(Enum):
    """Where an incident stands in its life."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class RunTier(Enum):
    """How much a run matters to people."""

    PAGE = "page"
    """Whatever is critical wakes somebody."""
    NOTIFY = "notify"
    """People are told, and never louder than by a warning."""
    QUIET = "quiet"
    """Nobody is told; everything is recorded and shown."""


class NotificationReason(Enum):
    """Why a page is sent. There is no page without a reason."""

    OPENED = "opened"
    ESCALATED = "worsened"
    INCIDENT_ADDED = "joined"
    """Something else came to it that no cause which people were told explains."""
    CAUSE_FOUND = "named"
    """What is behind it is known, of which people heard before it was: told once, as loudly."""
    UPDATED = "updated"
    """More is known of what people heard of: shown, and never sent."""
    RESOLVED = "resolved"


@dataclass(frozen=True, slots=True)
class IncidentKey:
    """What makes two findings the same incident; `rank` is WHOLE_RUN unless a rank was judged."""

    run: str
    rank: int
    detector: str


@dataclass(slots=True)
class Incident:
    """One episode of one detector on one run.

    `onset_step` is where it began, `opened_step` where its page was due, `resolved_step` where it
    was over. It came back `flaps` times. `last_good_step` is that of the last checkpoint before the
    onset, where there is one. Times are in seconds since the epoch, of the records that moved it.
    """

    key: IncidentKey
    episode: int
    severity: Severity
    signal: str
    remedy: str
    finding: Finding
    onset_step: int
    opened_step: int
    opened_time: float
    state: IncidentState = IncidentState.PENDING
    resolved_step: int | None = None
    resolved_time: float | None = None
    finding_count: int = 1
    clear_count: int = 0
    flaps: int = 0
    last_good_step: int | None = None

    @property
    def name(self) -> str:
        """Identity that is the same after every restart: run, detector, rank where any, episode."""
        scope = "" if self.key.rank < 0 else f"/rank{self.key.rank}"
        return f"{self.key.run}/{self.key.detector}{scope}#{self.episode}"


@dataclass(frozen=True, slots=True)
class Onset:
    """The first step that went wrong: most likely `step`, between `earliest` and `latest`.

    `last_good_step` is that of the last checkpoint before the earliest, where there is one.
    """

    step: int
    earliest: int
    latest: int
    last_good_step: int | None = None


@dataclass(frozen=True, slots=True)
class Notification:
    """What a person is told, and why; unsent and unworded.

    `notes` are sentences about the telling itself: by whom it is taken care of, why it comes late.
    `diagnosis` names what is behind `incident` and the `others` that are told of with it.
    """

    reason: NotificationReason
    incident: Incident
    step: int
    time: float
    notes: tuple[str, ...] = ()
    diagnosis: Diagnosis | None = None
    others: tuple[Incident, ...] = ()

    @property
    def name(self) -> str:
        """Identity of this very page: a page with a name that was sent is never sent again."""
        suffix = {
            NotificationReason.ESCALATED: f"-{self.incident.severity.value}",
            NotificationReason.INCIDENT_ADDED: f"-{self.trigger.key.detector}#{self.trigger.episode}",
        }
        return f"{self.incident.name}:{self.reason.value}{suffix.get(self.reason, '')}"

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """All that it tells of, the first of them first."""
        return (self.incident, *self.others)

    @property
    def trigger(self) -> Incident:
        """The incident whose words say why it is sent: the newest of a case that was joined."""
        joined = self.reason is NotificationReason.INCIDENT_ADDED and self.others
        return self.others[-1] if joined else self.incident

    @property
    def subject(self) -> str:
        """What it is about in a few words: the cause, or what found the incident."""
        return self.incident.key.detector if self.diagnosis is None else self.diagnosis.title

    @property
    def remedy(self) -> str:
        """What to do: about the cause, where there is one."""
        return self.incident.remedy if self.diagnosis is None else self.diagnosis.remedy

    @property
    def onset_step(self) -> int:
        """Where the first of its incidents began, or what speaks for its cause."""
        return self._earliest_onset[0]

    @property
    def last_good_step(self) -> int | None:
        """Step of the last checkpoint before anything of it began, where there is one."""
        return self._earliest_onset[1]

    @property
    def _earliest_onset(self) -> tuple[int, int | None]:
        known = [(each.onset_step, each.last_good_step) for each in self.incidents]
        if self.diagnosis is not None:
            dated = [clue.step for clue in self.diagnosis.evidence if clue.step is not None]
            known += [(step, self.diagnosis.last_good_step) for step in dated]
        return min(known, key=lambda began: began[0])


@dataclass
class IncidentBook:
    """Open incidents by key, and the number of the last episode of each.

    `patience` findings in a row make a pending incident fire (detectors bring their own patience,
    so the default is 1); `calm_records` calm opinions in a row resolve it. After `cooldown` more
    the episode is over, and people are told so; until then a finding re-opens it, which is a flap
    and costs no page. Evaluations, saves and ticks count as records like steps do.
    """

    findings_to_fire: int = 1
    clears_to_resolve: int = 16
    cooldown_records: int = 32
    open_incidents: dict[IncidentKey, Incident] = field(default_factory=dict)
    last_episodes: dict[IncidentKey, int] = field(default_factory=dict)
    checkpoint_steps: dict[str, deque[int]] = field(default_factory=dict)

    def update(self, record: Record) -> tuple[Notification, ...]:
        """Take over what a record says whoever judges it; the pages that are due because of it.

        Behind the end of a run nothing comes back: what rests then is over.
        """
        if record.event is Event.SAVE:
            kept = self.checkpoint_steps.setdefault(
                record.run, deque(maxlen=MAX_CHECKPOINTS_PER_RUN)
            )
            kept.append(record.step)
        if record.event is not Event.STOP:
            return ()
        here = (known for known in self.open_incidents.values() if known.key.run == record.run)
        resting = [known for known in here if known.state is IncidentState.RESOLVED]
        return tuple(self._close_incident(known, record) for known in resting)

    def update_incident(
        self, key: IncidentKey, record: Record, output: DetectorOutput, detector: Detector
    ) -> Notification | Incident | None:
        """Fold one opinion of `detector` in; return the page that is due because of it, if any.

        An incident that moved without a page, by calming down or by coming back, is returned as
        it is now.
        """
        if output is None:
            return None
        known = self.open_incidents.get(key)
        if isinstance(output, Clear):
            return self._record_clear(known, record) if known else None
        loud = output.severity or detector.severity
        if known is None:
            known = self._open_incident(key, record, output, detector, loud)
        else:
            known.finding_count += 1
        before, known.clear_count, known.finding = known.severity, 0, output
        known.severity = min(before, loud, key=lambda severity: severity.order)
        back = known.state is IncidentState.RESOLVED
        if back:
            known.state, known.flaps = IncidentState.FIRING, known.flaps + 1
            known.resolved_step = known.resolved_time = None
        if known.state is IncidentState.PENDING:
            return (
                self._fire(known, record) if known.finding_count >= self.findings_to_fire else None
            )
        if known.severity is not before:
            # What was only noted so far, nobody was told of: to people it opens now.
            noted = before is Severity.INFO
            return (
                self._fire(known, record)
                if noted
                else _notification(NotificationReason.ESCALATED, known, record)
            )
        return replace(known) if back else None

    def _open_incident(
        self,
        key: IncidentKey,
        record: Record,
        finding: Finding,
        detector: Detector,
        severity: Severity,
    ) -> Incident:
        self.last_episodes[key] = episode = self.last_episodes.get(key, 0) + 1
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
            last_good_step=last_checkpoint_before(onset, self.checkpoint_steps.get(key.run, ())),
        )
        self.open_incidents[key] = incident
        return incident

    def _fire(self, incident: Incident, record: Record) -> Notification:
        incident.state = IncidentState.FIRING
        incident.opened_step, incident.opened_time = record.step, record.time
        return _notification(NotificationReason.OPENED, incident, record)

    def _record_clear(self, incident: Incident, record: Record) -> Notification | Incident | None:
        incident.clear_count += 1
        if incident.state is IncidentState.PENDING:
            # A pending incident was never told to anybody, so it ends without a word.
            del self.open_incidents[incident.key]
            self.last_episodes[incident.key] -= 1
            return None
        if incident.clear_count < self.clears_to_resolve:
            return None
        rested = incident.state is IncidentState.RESOLVED
        if not rested:
            incident.state = IncidentState.RESOLVED
            incident.resolved_step, incident.resolved_time = record.step, record.time
        if incident.clear_count >= self.clears_to_resolve + self.cooldown_records:
            return self._close_incident(incident, record)
        return None if rested else replace(incident)

    def _close_incident(self, incident: Incident, record: Record) -> Notification:
        del self.open_incidents[incident.key]
        return _notification(NotificationReason.RESOLVED, incident, record)


def last_checkpoint_before(onset: int, checkpoint_steps: Iterable[int]) -> int | None:
    """Step of the last checkpoint before that step, of those told in the order they were made.

    >>> last_before(250, [100, 200, 300])
    200
    """
    return next((step for step in reversed(tuple(checkpoint_steps)) if step < onset), None)


def _notification(reason: NotificationReason, incident: Incident, record: Record) -> Notification:
    # A copy: the page tells of this moment, while the book's incident lives on.
    step = record.step if incident.resolved_step is None else incident.resolved_step
    return Notification(reason, replace(incident), step, record.time)
