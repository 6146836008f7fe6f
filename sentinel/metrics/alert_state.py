"""Open incidents and cases of a run, the number of alerts, and what suppresses them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass, field, replace
from typing import NamedTuple

from sentinel.model.finding import Severity
from sentinel.model.incident import Incident, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN
from sentinel.store.silences import Suppression

STALL_DETECTOR = "run_stalled"
"""Detector whose open incident makes the state of an active run `stalled`."""

NO_CAUSE = "none"
"""Label value of a case without a named cause."""

CAUSE_SETTLE_SECONDS = 30.0
"""Time after the opening of a case in which its alert takes over a cause that is named: about a
scrape, an evaluation and the group wait of Alertmanager."""


class CaseAlert(NamedTuple):
    """Identity of the alert of a case: another identity is another notification.

    `case` is the name of the case without the run, `detector` that of its lead. `cause` is the one
    that was named when the alert started: a later one changes texts, and sends nothing again.
    """

    case: str
    cause: str
    severity: Severity
    detector: str


@dataclass(slots=True)
class AlertState:
    """Alerts of one run: open incidents and cases by name, alert counts, suppression."""

    open_incidents: dict[str, Incident] = field(default_factory=dict)
    cases: dict[str, Notification] = field(default_factory=dict)
    """The last notification of each unresolved case, by the name of the case."""
    case_alerts: dict[str, CaseAlert] = field(default_factory=dict)
    """The alert of each unresolved case, by the name of the case."""
    alert_counts: Counter[tuple[str, str]] = field(default_factory=Counter)
    """Number of opened alerts by detector and severity."""
    suppression: Suppression = field(default_factory=Suppression)

    def copy(self) -> AlertState:
        """A copy that later updates do not change."""
        return replace(
            self,
            open_incidents=self.open_incidents.copy(),
            cases=self.cases.copy(),
            case_alerts=self.case_alerts.copy(),
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
        lead = notification.incident
        if notification.reason is NotificationReason.RESOLVED:
            self.cases.pop(lead.name, None)
            self.case_alerts.pop(lead.name, None)
            return
        self.cases[lead.name] = notification
        known, diagnosis = self.case_alerts.get(lead.name), notification.diagnosis
        is_settled = notification.time - lead.opened_time > CAUSE_SETTLE_SECONDS
        if known is None or known.severity is not lead.severity or not is_settled:
            self.case_alerts[lead.name] = CaseAlert(
                lead.name.removeprefix(f"{lead.key.run}/"),
                NO_CAUSE if diagnosis is None else diagnosis.cause,
                lead.severity,
                lead.key.detector,
            )

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
