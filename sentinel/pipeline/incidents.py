"""Turns findings into incidents with states and deduplication."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field, replace

from sentinel.model.finding import Clear, Detector, DetectorOutput, Finding, Severity
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import Event, Record

MAX_CHECKPOINTS_PER_RUN = 64
"""Checkpoints of a run that are remembered, the newest."""


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
