"""Cases: incidents that may have a common cause, notified as one.

A case opens with its first incident above severity info, the lead, and has the lead's name. An
incident joins it within `MAX_JOIN_GAP_STEPS` steps of the last one. This sends no notification if
the notified cause explains the incident, or if its detector was notified before, unless the
severity of the case rises. If the cause is found after the case was notified, one notification
reports it. A case is resolved with the last of its incidents. Incidents that end a run never join a
case, so that a dead run is always notified.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sentinel.model.diagnosis import RESUMED_STEP_KEY, CaseContext, Cause, Diagnosis, Symptom
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident, IncidentState
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.diagnose import diagnose
from sentinel.signals.catalogue import SIGNALS

MAX_JOIN_GAP_STEPS = 200
"""Logged steps between incidents of one case. In recorded runs, a policy collapsed within 80 steps
of its first symptom; with 150 to 200, each of these runs is one case."""

RUN_END_DETECTORS = frozenset({"run_died", "run_failed", "run_stalled"})
"""Detectors whose incidents never join a case."""

MAX_RESOLVED_PER_CASE = 16
"""Resolved incidents of a case that are stored, the newest, besides the lead."""

MAX_NAMES_PER_RUN = 1024
"""Metadata keys, and values, stored for a run; above it only catalogue signals are."""

_METADATA_EVENTS = (Event.START, Event.METADATA)
_VALUE_EVENTS = (Event.STEP, Event.EVAL, Event.SAMPLE, Event.HEARTBEAT)


@dataclass(slots=True)
class Case:
    """The incidents of a case by name in their present state, the lead first.

    `last_join_step_count` is the number of steps of the run when the last incident joined.
    `notified_severity`, `notified_detectors` and `is_cause_notified` are what was sent so far.
    """

    incidents: dict[str, Incident]
    last_join_step_count: int
    notified_severity: Severity
    resolved_names: set[str] = field(default_factory=set)
    diagnosis: Diagnosis | None = None
    is_cause_notified: bool = False
    notified_detectors: set[str] = field(default_factory=set)

    def build_notification(
        self, reason: NotificationReason, step: int, time: float
    ) -> Notification:
        """The notification of the case at that step and time."""
        lead, *others = (replace(incident) for incident in self.incidents.values())
        lead.severity = self.notified_severity
        if reason is NotificationReason.RESOLVED:
            last = max(self.incidents.values(), key=lambda each: each.resolved_time or 0.0)
            lead.state = IncidentState.RESOLVED
            lead.resolved_step, lead.resolved_time = last.resolved_step, last.resolved_time
            step = step if last.resolved_step is None else last.resolved_step
        return Notification(
            reason, lead, step, time, diagnosis=self.diagnosis, others=tuple(others)
        )

    def add(self, incident: Incident, step_count: int) -> None:
        """Add an incident, and drop the oldest resolved ones."""
        self.incidents[incident.name], self.last_join_step_count = incident, step_count
        expired = [name for name in list(self.incidents)[1:] if name in self.resolved_names][
            :-MAX_RESOLVED_PER_CASE
        ]
        for name in expired:
            del self.incidents[name]
            self.resolved_names.remove(name)

    def escalate(self) -> bool:
        """Raise the severity to the highest of incidents and cause; whether it changed."""
        before = self.notified_severity
        severities = [before, *(incident.severity for incident in self.incidents.values())]
        if self.diagnosis is not None and self.diagnosis.severity is not None:
            severities.append(self.diagnosis.severity)
        self.notified_severity = min(severities, key=lambda severity: severity.order)
        return self.notified_severity is not before


@dataclass(slots=True)
class RunCases:
    """The open cases of one run, and the context for their causes.

    `is_restarting` is set from a restart to the first step after it. `unnotified_incidents` are of
    severity info, or resolved without a case, and can be evidence; by name, each with the step
    count of its last change.
    """

    step_count: int = 0
    is_restarting: bool = False
    metadata: dict[str, str | float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    unnotified_incidents: dict[str, tuple[int, Incident]] = field(default_factory=dict)
    open_cases: list[Case] = field(default_factory=list)

    def update(self, record: Record) -> None:
        """Update metadata, values and step count from a record."""
        if record.event in _METADATA_EVENTS:
            self.metadata.update(record.values)
            self.metadata.update(record.attributes)
            self.metadata = dict(list(self.metadata.items())[:MAX_NAMES_PER_RUN])
        elif record.event in _VALUE_EVENTS:
            self.values.update(record.values)
            if len(self.values) > MAX_NAMES_PER_RUN:
                self.values = {n: x for n, x in self.values.items() if n in SIGNALS}
        if record.event is Event.START:
            self.is_restarting = record.attempt > 0 or self.step_count > 0
        elif record.event is Event.STEP and self.is_restarting:
            self.is_restarting, self.metadata[RESUMED_STEP_KEY] = False, record.step
        self.step_count += record.event is Event.STEP

    def add_unnotified(self, incident: Incident) -> None:
        """Store an incident without notification as possible evidence."""
        self.unnotified_incidents[incident.name] = self.step_count, incident
        self.drop_expired()

    def drop_expired(self) -> None:
        """Drop stored incidents that ended long ago."""
        self.unnotified_incidents = {
            name: (step_count, incident)
            for name, (step_count, incident) in self.unnotified_incidents.items()
            if incident.state is IncidentState.FIRING or self.is_recent(step_count)
        }

    def is_recent(self, step_count: int) -> bool:
        """Whether an incident of that step count is close enough to join a case now."""
        return self.step_count - step_count <= MAX_JOIN_GAP_STEPS

    def context_for(self, case: Case) -> CaseContext:
        """The symptoms of the case and of stored incidents, with metadata and values."""
        self.drop_expired()
        symptoms: dict[str, Symptom] = {}
        unnotified = (incident for _, incident in self.unnotified_incidents.values())
        for incident in (*case.incidents.values(), *unnotified):
            symptom = _symptom_from(incident)
            known = symptoms.get(symptom.detector)
            symptoms[symptom.detector] = (
                symptom if known is None else _merge_symptoms(known, symptom)
            )
        return CaseContext(symptoms, self.metadata, self.values)


@dataclass
class CaseBook:
    """Groups incidents into cases, by the `causes` that can explain them."""

    causes: Mapping[str, Cause] = field(default_factory=dict)
    runs: dict[str, RunCases] = field(default_factory=dict)

    def update(
        self, record: Record, changes: Sequence[Notification | Incident]
    ) -> tuple[Notification, ...]:
        """The case notifications that follow from the changes of incidents at this record."""
        run = self.runs.get(record.run)
        if run is None:
            run = self.runs[record.run] = RunCases()
        run.update(record)
        if not changes:
            return ()
        joined: list[Case | None] = []
        for change in changes:
            if isinstance(change, Notification):
                is_resolved = change.reason is NotificationReason.RESOLVED
                incident = change.incident
            else:
                is_resolved, incident = False, change
            joined.append(self._assign_to_case(run, incident, is_resolved=is_resolved))
        reasons = [
            (case, self._reassess(run, case, has_new_incident=any(case is each for each in joined)))
            for case in run.open_cases
        ]
        run.open_cases = [
            case for case, reason in reasons if reason is not NotificationReason.RESOLVED
        ]
        return tuple(
            case.build_notification(reason, record.step, record.time)
            for case, reason in reasons
            if reason is not None
        )

    def current_notifications(self) -> Iterator[Notification]:
        """A notification of each open case in its present state."""
        for run in self.runs.values():
            for case in run.open_cases:
                lead = next(iter(case.incidents.values()))
                yield case.build_notification(
                    NotificationReason.OPENED, lead.opened_step, lead.opened_time
                )

    def _assign_to_case(
        self, run: RunCases, incident: Incident, *, is_resolved: bool
    ) -> Case | None:
        """Add a changed incident to its case; returns the case if the incident joined it now."""
        name = incident.name
        case = next((case for case in run.open_cases if name in case.incidents), None)
        if case is not None:
            case.incidents[name] = incident
            case.resolved_names |= {name} if is_resolved else set()
            return None
        if is_resolved or incident.severity is Severity.INFO:
            run.add_unnotified(incident)
            return None
        run.unnotified_incidents.pop(name, None)
        case = self._find_case(run, incident)
        if case is None:
            run.open_cases.append(Case({name: incident}, run.step_count, incident.severity))
        else:
            case.add(incident, run.step_count)
        return case

    def _find_case(self, run: RunCases, incident: Incident) -> Case | None:
        """The newest open case that can have a common cause with this incident."""
        recent = (
            case for case in reversed(run.open_cases) if run.is_recent(case.last_join_step_count)
        )
        related = (
            case
            for case in recent
            if any(self._share_cause(incident, other) for other in case.incidents.values())
        )
        return next(related, None)

    def _share_cause(self, one: Incident, other: Incident) -> bool:
        """Whether one cause can explain both."""
        detectors = {one.key.detector, other.key.detector}
        if not detectors.isdisjoint(RUN_END_DETECTORS):
            return False
        return len(detectors) == 1 or any(
            detectors <= cause.explains for cause in self.causes.values()
        )

    def _reassess(
        self, run: RunCases, case: Case, *, has_new_incident: bool
    ) -> NotificationReason | None:
        """Update the diagnosis of a case; returns the reason for a notification, if any."""
        if case.resolved_names.issuperset(case.incidents):
            return NotificationReason.RESOLVED
        before = case.diagnosis
        detectors = {incident.key.detector for incident in case.incidents.values()}
        # Stored incidents are evidence only for causes that explain an incident of the case.
        candidates = {name: each for name, each in self.causes.items() if detectors & each.explains}
        case.diagnosis = diagnose(run.context_for(case), candidates) or before
        reason = self._notification_reason(case)
        if reason is not None:
            case.notified_detectors |= detectors
            case.is_cause_notified = case.diagnosis is not None
            return reason
        return NotificationReason.UPDATED if has_new_incident or case.diagnosis != before else None

    def _notification_reason(self, case: Case) -> NotificationReason | None:
        """The reason to send a notification now; None if nothing new must be sent."""
        is_escalated = case.escalate()
        if not case.notified_detectors:
            return NotificationReason.OPENED
        if is_escalated:
            return NotificationReason.ESCALATED
        cause = None if case.diagnosis is None else self.causes.get(case.diagnosis.cause)
        explained = case.notified_detectors | (cause.explains if cause is not None else set())
        for name, incident in reversed(case.incidents.items()):
            if incident.key.detector not in explained:
                # Last, since the notification is about it.
                case.incidents[name] = case.incidents.pop(name)
                return NotificationReason.INCIDENT_ADDED
        return (
            NotificationReason.CAUSE_FOUND
            if cause is not None and not case.is_cause_notified
            else None
        )


def _merge_symptoms(symptom: Symptom, other: Symptom) -> Symptom:
    """The symptom of two incidents of one detector: the earlier one, with all occurrences."""
    first = other if other.onset_step < symptom.onset_step else symptom
    return replace(first, occurrences=symptom.occurrences + other.occurrences)


def _symptom_from(incident: Incident) -> Symptom:
    finding = incident.finding
    rank = incident.key.rank if incident.key.rank != WHOLE_RUN else finding.rank
    return Symptom(
        incident.key.detector,
        incident.severity,
        incident.onset_step,
        incident.opened_step,
        finding.summary,
        finding.evidence,
        incident.last_good_step,
        rank,
        incident.flaps + 1,
        incident.onset_range,
    )
