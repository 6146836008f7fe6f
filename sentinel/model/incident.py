"""Incidents: episodes of consecutive findings of one detector.

An incident is pending until there are enough findings in a row, then firing, and resolved after
enough clear records in a row. A finding during the cooldown after that re-opens the same episode,
which counts as a flap. A notification is sent when the incident fires, when its severity rises, and
when the episode ends. The end of the run ends its incidents too. Steps and times are those of the
records, so a replay gives the same incidents as the live run.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sentinel.model.finding import Finding, Severity


class IncidentState(Enum):
    """State of an incident."""

    PENDING = "pending"
    FIRING = "firing"
    RESOLVED = "resolved"


class Resolution(Enum):
    """Why an incident ended; the value is the end of a sentence."""

    CLEARED = "the problem is over"
    RUN_FINISHED = "the run finished"
    RUN_STOPPED = "the run was stopped"
    RUN_FAILED = "the run failed"
    TRAINING_FINISHED = "the training finished"
    STAGE_FINISHED = "another stage began"
    RESUMED = "training continues"
    RESTARTED = "another training began"
    CORRECTED = "another cause was found"
    ACKNOWLEDGED = "it was acknowledged"
    EXPIRED = "24 hours have passed"
    STARTED_AGAIN = "training was started again"

    @property
    def is_silent(self) -> bool:
        """Whether it is no news for people: a notification of it only closes open alerts."""
        return self in _SILENT_RESOLUTIONS


_SILENT_RESOLUTIONS = frozenset({
    Resolution.RUN_STOPPED, Resolution.RUN_FAILED, Resolution.CORRECTED, Resolution.ACKNOWLEDGED,
    Resolution.EXPIRED, Resolution.STARTED_AGAIN,
})  # fmt: skip

ENDS_OF_RUN = (
    Resolution.RUN_FINISHED, Resolution.RUN_STOPPED, Resolution.RUN_FAILED,
    Resolution.TRAINING_FINISHED, Resolution.STAGE_FINISHED,
)  # fmt: skip
"""Reasons that state nothing about the problem itself: it was there until the run, or that training
or stage of it, ended."""


class RunTier(Enum):
    """How notifications of a run are sent."""

    PAGE = "page"
    """Critical incidents page."""
    NOTIFY = "notify"
    """Notifications are sent as warnings at most."""
    QUIET = "quiet"
    """No notification is sent; incidents are recorded and shown."""


@dataclass(frozen=True, slots=True)
class IncidentKey:
    """Identity of an incident; `rank` is WHOLE_RUN unless the detector evaluates single ranks."""

    run: str
    rank: int
    detector: str


@dataclass(slots=True)
class Incident:
    """One episode of one detector on one run.

    The problem began at `onset_step`, between the two steps of `onset_range` if that is known: as
    the detector reported until the onset is estimated. The incident fired at `opened_step`, in
    attempt `attempt` of the run, and was over from `resolved_step` on, for the reason `resolution`.
    It was re-opened `flaps` times. `last_good_step` is the step of the last checkpoint before the
    onset, if there is one. Times are those of the records, in seconds since the epoch. `title` is
    the noun phrase of its detector, `opened_summary` the summary of the finding with which it
    fired.
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
    onset_range: tuple[int, int] | None = None
    title: str = ""
    opened_summary: str = ""
    attempt: int = 0
    clear_step: int | None = None
    """First of the clear records in a row, and its time."""
    clear_time: float | None = None
    resolution: Resolution | None = None
    shown_value: float = 0.0
    """The size of the first evidence when the incident was last stored and shown."""
    finding_step: int | None = None
    """The step of the finding; None if an earlier version stored it."""
    ended: Resolution | None = None
    """Why it was ended while it fired, once it is resolved for another reason."""

    def set_onset(self, onset: Onset) -> None:
        """Replace the dates by those that were estimated."""
        self.onset_step, self.last_good_step = onset.step, onset.last_good_step
        self.onset_range = onset.earliest, onset.latest

    @property
    def is_ended_firing(self) -> bool:
        """Whether it fires although its run finished: `resolution` is why no finding follows."""
        return self.state is IncidentState.FIRING and self.resolution is not None

    @property
    def lasted_until(self) -> Resolution | None:
        """The end of the run, or of that training or stage of it, if the problem was there then."""
        return self.ended or (self.resolution if self.resolution in ENDS_OF_RUN else None)

    def resolve(self, resolution: Resolution, step: int, time: float) -> None:
        """End it for a reason other than its detector; that its run ended damaged stays known."""
        self.state, self.ended, self.resolution = (
            IncidentState.RESOLVED, self.lasted_until, resolution,
        )  # fmt: skip
        self.resolved_step, self.resolved_time = step, time

    def onset_to_dict(self) -> dict[str, int | None] | None:
        """The onset with its interval as JSON; None if no interval is known."""
        if self.onset_range is None:
            return None
        earliest, latest = self.onset_range
        return {
            "step": self.onset_step,
            "earliest": earliest,
            "latest": latest,
            "last_good_step": self.last_good_step,
        }

    @property
    def name(self) -> str:
        """Identity that survives restarts: run, detector, rank if there is one, episode."""
        scope = "" if self.key.rank < 0 else f"/rank{self.key.rank}"
        return f"{self.key.run}/{self.key.detector}{scope}#{self.episode}"


@dataclass(frozen=True, slots=True)
class Onset:
    """The estimated onset: most likely `step`, between `earliest` and `latest`.

    `last_good_step` is the step of the last checkpoint before `earliest`, if there is one.
    """

    step: int
    earliest: int
    latest: int
    last_good_step: int | None = None
