"""Incidents: findings folded into the few episodes worth telling a person about.

An incident is pending while a finding has been made but not yet often enough, firing once a page
about it exists, and resolved when the detector has been calm for long enough. One that comes back
soon after is the same episode, and has flapped. There is one page when it fires, and one when it
is over for good. The book holds no clock: time and step are what the records say, so a replay
folds exactly as the live run did.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sentinel.model.finding import Finding, Severity


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
