"""The warnings that an agent notifies of itself rather than of the training."""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Record


@dataclass(frozen=True)
class AgentWarning:
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

    def resolved(self, record: Record) -> Notification:
        """The notification that resolves the warning at that record."""
        incident = self._incident(record)
        incident.state = IncidentState.RESOLVED
        incident.resolved_step, incident.resolved_time = record.step, record.time
        return Notification(NotificationReason.RESOLVED, incident, record.step, record.time)

    def _incident(self, record: Record) -> Incident:
        return Incident(
            key=IncidentKey(self.run, WHOLE_RUN, self.label),
            episode=self.episode,
            severity=Severity.WARNING,
            signal=self.subject,
            remedy=self.remedy,
            finding=self.finding,
            onset_step=record.step,
            opened_step=record.step,
            opened_time=record.time,
            state=IncidentState.FIRING,
        )
