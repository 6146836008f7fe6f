"""A notification about a case, before it is rendered for a sink."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum

from sentinel.model.diagnosis import Diagnosis
from sentinel.model.incident import Incident


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
