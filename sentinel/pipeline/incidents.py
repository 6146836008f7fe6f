"""Turns findings into incidents with states and deduplication."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace

from sentinel.model.finding import (
    Clear,
    Detector,
    DetectorOutput,
    Finding,
    Severity,
    detector_title,
)
from sentinel.model.incident import Incident, IncidentKey, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import Event, Record
from sentinel.signals.setting_names import with_setting_names

MAX_CHECKPOINTS_PER_RUN = 64
"""Steps of the newest checkpoints that are stored for each run."""

INFO_UPDATE_FACTOR = 1.1
"""Growth of the first evidence with which an open incident of severity info is shown again."""

Metadata = Mapping[str, str | float]
"""Settings and environment of a run, by name."""

_NO_METADATA: Metadata = {}


@dataclass
class IncidentBook:
    """Open incidents by key, and the number of the last episode of each.

    `findings_to_fire` findings make a pending incident fire (detectors bring their own persistence,
    so the default is 1); `clears_to_resolve` clear records in a row resolve it. After
    `cooldown_records` more the episode ends, with a notification; until then a finding re-opens it
    without one, which counts as a flap. Evaluations, saves and heartbeats count like steps.
    """

    findings_to_fire: int = 1
    clears_to_resolve: int = 16
    cooldown_records: int = 32
    open_incidents: dict[IncidentKey, Incident] = field(default_factory=dict)
    last_episodes: dict[IncidentKey, int] = field(default_factory=dict)
    checkpoint_steps: dict[str, deque[int]] = field(default_factory=dict)

    def update(self, record: Record) -> tuple[Notification, ...]:
        """Update checkpoints, and end resolved incidents when the run stops.

        Returns the notifications of the incidents that ended.
        """
        if record.event is Event.SAVE:
            steps = self.checkpoint_steps.setdefault(
                record.run, deque(maxlen=MAX_CHECKPOINTS_PER_RUN)
            )
            steps.append(record.step)
        if record.event is not Event.STOP:
            return ()
        resolved = [
            incident
            for incident in self.open_incidents.values()
            if incident.key.run == record.run and incident.state is IncidentState.RESOLVED
        ]
        return tuple(self._close_incident(incident, record) for incident in resolved)

    def update_incident(
        self,
        key: IncidentKey,
        record: Record,
        output: DetectorOutput,
        detector: Detector,
        metadata: Metadata = _NO_METADATA,
    ) -> Notification | Incident | None:
        """Update the incident of `key` with one output of its detector.

        `metadata` is that of the run, for the names of settings in the remedy.

        Returns a notification if one is due; a copy of the incident if it changed without one, by
        resolving, re-opening, or a larger value at severity info; else None.
        """
        if output is None:
            return None
        incident = self.open_incidents.get(key)
        if isinstance(output, Clear):
            return None if incident is None else self._record_clear(incident, record, output)
        severity = output.severity or detector.severity
        if incident is None:
            incident = self._open_incident(key, record, output, detector, metadata)
        else:
            incident.finding_count += 1
        is_larger = _first_value(output) > INFO_UPDATE_FACTOR * _first_value(incident.finding)
        before, incident.clear_count, incident.finding = incident.severity, 0, output
        incident.severity = min(before, severity, key=lambda each: each.order)
        is_reopened = incident.state is IncidentState.RESOLVED
        if is_reopened:
            incident.state, incident.flaps = IncidentState.FIRING, incident.flaps + 1
            incident.resolved_step = incident.resolved_time = None
        if incident.state is IncidentState.PENDING:
            is_due = incident.finding_count >= self.findings_to_fire
            return self._fire(incident, record) if is_due else None
        if incident.severity is not before:
            if before is Severity.INFO:
                # No notification was sent for it yet, so this one opens it.
                if output.onset_step is not None:
                    incident.onset_step = output.onset_step
                    incident.onset_range = output.onset_range
                    incident.last_good_step = self._last_good_step(key.run, output.onset_step)
                return self._fire(incident, record)
            return _notification(NotificationReason.ESCALATED, incident, record)
        is_update = is_larger and incident.severity is Severity.INFO
        return replace(incident) if is_reopened or is_update else None

    def _open_incident(
        self,
        key: IncidentKey,
        record: Record,
        finding: Finding,
        detector: Detector,
        metadata: Metadata,
    ) -> Incident:
        self.last_episodes[key] = episode = self.last_episodes.get(key, 0) + 1
        onset = record.step if finding.onset_step is None else finding.onset_step
        incident = Incident(
            key=key,
            episode=episode,
            severity=finding.severity or detector.severity,
            signal=finding.signal or detector.signal,
            remedy=with_setting_names(finding.remedy or detector.remedy, metadata),
            finding=finding,
            onset_step=onset,
            opened_step=record.step,
            opened_time=record.time,
            last_good_step=self._last_good_step(key.run, onset),
            onset_range=finding.onset_range,
            title=detector_title(detector),
        )
        self.open_incidents[key] = incident
        return incident

    def _last_good_step(self, run: str, onset: int) -> int | None:
        return last_checkpoint_before(onset, self.checkpoint_steps.get(run, ()))

    def _fire(self, incident: Incident, record: Record) -> Notification:
        incident.state = IncidentState.FIRING
        incident.opened_step, incident.opened_time = record.step, record.time
        incident.opened_summary = incident.finding.summary
        return _notification(NotificationReason.OPENED, incident, record)

    def _record_clear(
        self, incident: Incident, record: Record, clear: Clear
    ) -> Notification | Incident | None:
        incident.clear_count += 1
        if clear.withdraws and incident.state is IncidentState.FIRING:
            incident.state = IncidentState.RESOLVED
            incident.resolved_step, incident.resolved_time = record.step, record.time
            return self._close_incident(incident, record)
        if incident.state is IncidentState.PENDING:
            # It was never notified, so it ends without a notification.
            del self.open_incidents[incident.key]
            self.last_episodes[incident.key] -= 1
            return None
        if incident.clear_count < self.clears_to_resolve:
            return None
        was_resolved = incident.state is IncidentState.RESOLVED
        if not was_resolved:
            incident.state = IncidentState.RESOLVED
            incident.resolved_step, incident.resolved_time = record.step, record.time
        if incident.clear_count >= self.clears_to_resolve + self.cooldown_records:
            return self._close_incident(incident, record)
        return None if was_resolved else replace(incident)

    def _close_incident(self, incident: Incident, record: Record) -> Notification:
        del self.open_incidents[incident.key]
        return _notification(NotificationReason.RESOLVED, incident, record)


def last_checkpoint_before(onset: int, checkpoint_steps: Iterable[int]) -> int | None:
    """The last of the checkpoints, which are in the order of their creation, before `onset`.

    >>> last_checkpoint_before(250, [100, 200, 300])
    200
    """
    return next((step for step in reversed(tuple(checkpoint_steps)) if step < onset), None)


def _first_value(finding: Finding) -> float:
    """The size of the first evidence if it is a number, else 0."""
    value = next(iter(finding.evidence.values()), 0.0)
    return abs(value) if isinstance(value, float) else 0.0


def _notification(reason: NotificationReason, incident: Incident, record: Record) -> Notification:
    # A copy, since the incident continues to change.
    step = record.step if incident.resolved_step is None else incident.resolved_step
    return Notification(reason, replace(incident), step, record.time)
