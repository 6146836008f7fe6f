"""The warnings that an agent notifies of itself rather than of the training."""

from __future__ import annotations

from typing import NamedTuple

from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState, Resolution
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record


class AgentWarning(NamedTuple):
    """A warning of a run; `label` stands in for the name of a detector, `subject` for a signal."""

    run: str
    label: str
    subject: str
    episode: int
    finding: Finding
    remedy: str

    def opened(self, record: Record) -> Notification:
        """The notification that opens the warning at that record."""
        incident = self._incident(record)
        return Notification(NotificationReason.OPENED, incident, record.step, record.time)

    def updated(self, record: Record, opening: Notification) -> Notification:
        """The notification at that record with which the text of an open warning changes."""
        incident = self._incident(record, opening)
        reason = NotificationReason.UPDATED
        return Notification(reason, incident, record.step, record.time, number=opening.number + 1)

    def resolved(self, record: Record, opening: Notification | None = None) -> Notification:
        """The notification that resolves the warning at that record; `opening` if it is known."""
        incident = self._incident(record, opening)
        incident.state = IncidentState.RESOLVED
        incident.resolved_step, incident.resolved_time = record.step, record.time
        if record.event is Event.STOP and record.attributes.get("outcome") == "finished":
            # It is not over. What it warns of is sent before its end, also if the run was short.
            incident.resolution = Resolution.RUN_FINISHED
        return Notification(NotificationReason.RESOLVED, incident, record.step, record.time)

    def _incident(self, record: Record, opening: Notification | None = None) -> Incident:
        step, time = record.step, record.time
        if opening is not None and opening.incident.episode == self.episode:
            step, time = opening.incident.opened_step, opening.incident.opened_time
        return Incident(
            key=IncidentKey(self.run, WHOLE_RUN, self.label),
            episode=self.episode,
            severity=Severity.WARNING,
            signal=self.subject,
            remedy=self.remedy,
            finding=self.finding,
            onset_step=step,
            opened_step=step,
            opened_time=time,
            state=IncidentState.FIRING,
        )
