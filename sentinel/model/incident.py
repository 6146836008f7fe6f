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
from sentinel.model.finding import Calm, Detector, Finding, Opinion, Severity
from sentinel.model.record import Event, Record

SAVES_KEPT = 64
"""Checkpoints of a run that are remembered, the newest."""


class State(Enum):
    """Where an incident stands in its life."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class Tier(Enum):
    """How much a run matters to people."""

    PAGE = "page"
    """Whatever is critical wakes somebody."""
    NOTIFY = "notify"
    """People are told, and never louder than by a warning."""
    QUIET = "quiet"
    """Nobody is told; everything is recorded and shown."""


class Reason(Enum):
    """Why a page is sent. There is no page without a reason."""

    OPENED = "opened"
    WORSENED = "worsened"
    JOINED = "joined"
    """Something else came to it that no cause which people were told explains."""
    NAMED = "named"
    """What is behind it is known, of which people heard before it was: told once, as loudly."""
    UPDATED = "updated"
    """More is known of what people heard of: shown, and never sent."""
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
    was over. It came back `flaps` times. `last_good_step` is that of the last checkpoint before the
    onset, where there is one. Times are in seconds since the epoch, of the records that moved it.
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
class Page:
    """What a person is told, and why; unsent and unworded.

    `notes` are sentences about the telling itself: by whom it is taken care of, why it comes late.
    `diagnosis` names what is behind `incident` and the `others` that are told of with it.
    """

    reason: Reason
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
            Reason.WORSENED: f"-{self.incident.severity.value}",
            Reason.JOINED: f"-{self.news.key.detector}#{self.news.episode}",
        }
        return f"{self.incident.name}:{self.reason.value}{suffix.get(self.reason, '')}"

    @property
    def incidents(self) -> tuple[Incident, ...]:
        """All that it tells of, the first of them first."""
        return (self.incident, *self.others)

    @property
    def news(self) -> Incident:
        """The incident whose words say why it is sent: the newest of a case that was joined."""
        joined = self.reason is Reason.JOINED and self.others
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
        return self._began[0]

    @property
    def last_good_step(self) -> int | None:
        """Step of the last checkpoint before anything of it began, where there is one."""
        return self._began[1]

    @property
    def _began(self) -> tuple[int, int | None]:
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

    patience: int = 1
    calm_records: int = 16
    cooldown: int = 32
    open: dict[Key, Incident] = field(default_factory=dict)
    episodes: dict[Key, int] = field(default_factory=dict)
    saves: dict[str, deque[int]] = field(default_factory=dict)

    def hear(self, record: Record) -> tuple[Page, ...]:
        """Take over what a record says whoever judges it; the pages that are due because of it.

        Behind the end of a run nothing comes back: what rests then is over.
        """
        if record.event is Event.SAVE:
            kept = self.saves.setdefault(record.run, deque(maxlen=SAVES_KEPT))
            kept.append(record.step)
        if record.event is not Event.STOP:
            return ()
        here = (known for known in self.open.values() if known.key.run == record.run)
        resting = [known for known in here if known.state is State.RESOLVED]
        return tuple(self._end(known, record) for known in resting)

    def fold(
        self, key: Key, record: Record, opinion: Opinion, detector: Detector
    ) -> Page | Incident | None:
        """Fold one opinion of `detector` in; return the page that is due because of it, if any.

        An incident that moved without a page, by calming down or by coming back, is returned as
        it is now.
        """
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
        before, known.calm, known.finding = known.severity, 0, opinion
        known.severity = min(before, loud, key=lambda severity: severity.order)
        back = known.state is State.RESOLVED
        if back:
            known.state, known.flaps = State.FIRING, known.flaps + 1
            known.resolved_step = known.resolved_time = None
        if known.state is State.PENDING:
            return self._fire(known, record) if known.findings >= self.patience else None
        if known.severity is not before:
            # What was only noted so far, nobody was told of: to people it opens now.
            noted = before is Severity.INFO
            return self._fire(known, record) if noted else _page(Reason.WORSENED, known, record)
        return replace(known) if back else None

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
            last_good_step=last_before(onset, self.saves.get(key.run, ())),
        )
        self.open[key] = incident
        return incident

    def _fire(self, known: Incident, record: Record) -> Page:
        known.state = State.FIRING
        known.opened_step, known.opened_time = record.step, record.time
        return _page(Reason.OPENED, known, record)

    def _calm(self, known: Incident, record: Record) -> Page | Incident | None:
        known.calm += 1
        if known.state is State.PENDING:
            # A pending incident was never told to anybody, so it ends without a word.
            del self.open[known.key]
            self.episodes[known.key] -= 1
            return None
        if known.calm < self.calm_records:
            return None
        rested = known.state is State.RESOLVED
        if not rested:
            known.state = State.RESOLVED
            known.resolved_step, known.resolved_time = record.step, record.time
        if known.calm >= self.calm_records + self.cooldown:
            return self._end(known, record)
        return None if rested else replace(known)

    def _end(self, known: Incident, record: Record) -> Page:
        del self.open[known.key]
        return _page(Reason.RESOLVED, known, record)


def last_before(onset: int, saves: Iterable[int]) -> int | None:
    """Step of the last checkpoint before that step, of those told in the order they were made.

    >>> last_before(250, [100, 200, 300])
    200
    """
    return next((step for step in reversed(tuple(saves)) if step < onset), None)


def _page(reason: Reason, incident: Incident, record: Record) -> Page:
    # A copy: the page tells of this moment, while the book's incident lives on.
    step = record.step if incident.resolved_step is None else incident.resolved_step
    return Page(reason, replace(incident), step, record.time)
