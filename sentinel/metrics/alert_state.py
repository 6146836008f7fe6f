"""Open incidents and cases of a run, the number of alerts, and what suppresses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace

from sentinel.model.incident import Incident, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN
from sentinel.store.silences import Suppression

STALL_DETECTOR = "run_stalled"
"""Detector whose open incident makes the state of an active run `stalled`."""


@dataclass(slots=True)
class AlertState:
    """Alerts of one run: open incidents and cases by name, alert counts, suppression."""

    open_incidents: dict[str, Incident] = field(default_factory=dict)
    cases: dict[str, Notification] = field(default_factory=dict)
    """The last notification of each unresolved case, by the name of the case."""
    alert_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of opened alerts by detector and severity."""
    suppression: Suppression = field(default_factory=Suppression)

    def copy(self) -> AlertState:
        """A copy that later updates do not change."""
        return replace(
            self,
            open_incidents=self.open_incidents.copy(),
            cases=self.cases.copy(),
            alert_counts=self.alert_counts.copy(),
        )

    def update_notification(self, notification: Notification) -> None:
        """Apply the notification of a single incident."""
        incident = notification.incident
        if notification.reason is NotificationReason.RESOLVED:
            self.open_incidents.pop(incident.name, None)
            return
        self.update_incident(incident)
        if notification.reason is NotificationReason.OPENED:
            self.alert_counts[incident.key.detector, incident.severity.value] += 1

    def update_incident(self, incident: Incident) -> None:
        """Apply the new state of an incident."""
        if incident.state is IncidentState.RESOLVED:
            self.open_incidents.pop(incident.name, None)
        else:
            self.open_incidents[incident.name] = incident

    def update_case(self, notification: Notification) -> None:
        """Apply the notification of a case."""
        if notification.reason is NotificationReason.RESOLVED:
            self.cases.pop(notification.incident.name, None)
        else:
            self.cases[notification.incident.name] = notification

    @property
    def open_cases(self) -> list[Notification]:
        """The last notification of each case with an open incident."""
        return [
            notification
            for notification in self.cases.values()
            if any(each.name in self.open_incidents for each in notification.incidents)
        ]

    @property
    def is_stalled(self) -> bool:
        """Whether an incident of `STALL_DETECTOR` is open."""
        return any(i.key.detector == STALL_DETECTOR for i in self.open_incidents.values())

    def incident_ranks(self) -> Iterator[int]:
        """The rank of each open incident that concerns one."""
        for incident in self.open_incidents.values():
            own_rank, finding_rank = incident.key.rank, incident.finding.rank
            if own_rank != WHOLE_RUN:
                yield own_rank
            elif finding_rank is not None:
                yield finding_rank
