"""Cases: incidents that one cause may account for, told to people as one.

A case opens with the first incident that is worth telling, its lead, and is known by that one's
name. What joins it within `JOINS_WITHIN` points of the last costs no page if the cause that is
named explains it, or if it is more of the same, unless it makes the case louder. Where people heard
of a case before its cause had a name, they are told the name, once. The case is over when the last
of its incidents is. What ends a run is never folded: a run that died is always told.
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
"""Steps told of. The study saw a policy fall apart within 80 points of its first sign, and 150 to
200 fold its runs into one case each."""

RUN_END_DETECTORS = frozenset({"run_died", "run_failed", "run_stalled"})
"""Detectors whose incidents are never folded."""

MAX_RESOLVED_PER_CASE = 16
"""Incidents of a case at their end that it remembers, the newest, beside its lead."""

MAX_NAMES_PER_RUN = 1024
"""Settings, and values, of a run that are remembered; of values the catalogue's come first."""

_METADATA_EVENTS = (Event.START, Event.METADATA)
_VALUE_EVENTS = (Event.STEP, Event.EVAL, Event.SAMPLE, Event.HEARTBEAT)


@dataclass(slots=True)
class Case:
    """`incidents` by name, each as it is now, the lead first; of them `over` are at their end.

    `latest` counts the run's steps up to the last incident that joined. `told` is how loud people
    heard of it, `named` whether by the name of a cause, and `heard` by which detectors.
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
        """What people are told of the case, at that step and time."""
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
        """Take one more incident in, and let go of those that were over long ago."""
        self.incidents[incident.name], self.last_join_step_count = incident, step_count
        old = [name for name in list(self.incidents)[1:] if name in self.resolved_names][
            :-MAX_RESOLVED_PER_CASE
        ]
        for name in old:
            del self.incidents[name]
            self.resolved_names.remove(name)

    def escalate(self) -> bool:
        """Take the loudest of its incidents and its cause for its own; whether that is news."""
        heard = [
            self.notified_severity,
            *(incident.severity for incident in self.incidents.values()),
        ]
        if self.diagnosis is not None and self.diagnosis.severity is not None:
            heard.append(self.diagnosis.severity)
        before, self.notified_severity = (
            self.notified_severity,
            min(heard, key=lambda severity: severity.order),
        )
        return self.notified_severity is not before


@dataclass(slots=True)
class RunCases:
    """The cases of one run, and what a cause may want to know of it.

    `restarted` is whether the run began again and has not stepped since. `noted` are incidents that
    nobody was told of and that may yet be evidence, by name, each with the count of steps at which
    it last moved.
    """

    step_count: int = 0
    is_restarting: bool = False
    metadata: dict[str, str | float] = field(default_factory=dict)
    values: dict[str, float] = field(default_factory=dict)
    unnotified_incidents: dict[str, tuple[int, Incident]] = field(default_factory=dict)
    open_cases: list[Case] = field(default_factory=list)

    def update(self, record: Record) -> None:
        """Take over what a record says of the run."""
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
        """Keep a quiet incident for evidence."""
        self.unnotified_incidents[incident.name] = self.step_count, incident
        self.drop_expired()

    def drop_expired(self) -> None:
        """Let go of what was over long ago."""
        self.unnotified_incidents = {
            name: (at, known)
            for name, (at, known) in self.unnotified_incidents.items()
            if known.state is IncidentState.FIRING or self.is_recent(at)
        }

    def is_recent(self, step_count: int) -> bool:
        """Whether the run has gone on only so little since then that both may belong together."""
        return self.step_count - step_count <= MAX_JOIN_GAP_STEPS

    def context_for(self, case: Case) -> CaseContext:
        """What there is to explain, and to explain it by."""
        self.drop_expired()
        signs: dict[str, Symptom] = {}
        beside = (incident for _, incident in self.unnotified_incidents.values())
        for incident in (*case.incidents.values(), *beside):
            sign = _symptom_from(incident)
            known = signs.get(sign.detector)
            signs[sign.detector] = sign if known is None else _merge_symptoms(known, sign)
        return CaseContext(signs, self.metadata, self.values)


@dataclass
class CaseBook:
    """Folds the pages of incidents into those of cases, by the `causes` that may explain them."""

    causes: Mapping[str, Cause] = field(default_factory=dict)
    runs: dict[str, RunCases] = field(default_factory=dict)

    def update(
        self, record: Record, changes: Sequence[Notification | Incident]
    ) -> tuple[Notification, ...]:
        """What people are to be told, of what became of incidents at this record of the run."""
        run = self.runs.get(record.run)
        if run is None:
            run = self.runs[record.run] = RunCases()
        run.update(record)
        if not changes:
            return ()
        joined: list[Case | None] = []
        for new in changes:
            over = isinstance(new, Notification) and new.reason is NotificationReason.RESOLVED
            incident = new.incident if isinstance(new, Notification) else new
            joined.append(self._assign_to_case(run, incident, is_resolved=over))
        turns = [
            (case, self._reassess(run, case, has_new_incident=any(case is each for each in joined)))
            for case in run.open_cases
        ]
        run.open_cases = [
            case for case, reason in turns if reason is not NotificationReason.RESOLVED
        ]
        told = ((case, reason) for case, reason in turns if reason is not None)
        return tuple(
            case.build_notification(reason, record.step, record.time) for case, reason in told
        )

    def current_notifications(self) -> Iterator[Notification]:
        """What people would be told of each open case, if they were told now."""
        for run in self.runs.values():
            for case in run.open_cases:
                lead = next(iter(case.incidents.values()))
                yield case.build_notification(
                    NotificationReason.OPENED, lead.opened_step, lead.opened_time
                )

    def _assign_to_case(
        self, run: RunCases, incident: Incident, *, is_resolved: bool
    ) -> Case | None:
        """Put an incident that moved where it belongs; the case that it joined, if it did."""
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
        """The newest open case to which this incident belongs."""
        close = (
            case for case in reversed(run.open_cases) if run.is_recent(case.last_join_step_count)
        )
        akin = (
            case
            for case in close
            if any(self._share_cause(incident, other) for other in case.incidents.values())
        )
        return next(akin, None)

    def _share_cause(self, one: Incident, other: Incident) -> bool:
        """Whether one cause may explain both."""
        both = {one.key.detector, other.key.detector}
        if not both.isdisjoint(RUN_END_DETECTORS):
            return False
        return len(both) == 1 or any(both <= cause.explains for cause in self.causes.values())

    def _reassess(
        self, run: RunCases, case: Case, *, has_new_incident: bool
    ) -> NotificationReason | None:
        """Diagnose a case anew, and say why people are to be told of it, if they are."""
        if case.resolved_names.issuperset(case.incidents):
            return NotificationReason.RESOLVED
        before = case.diagnosis
        known = {incident.key.detector for incident in case.incidents.values()}
        # What is noted beside a case is evidence for what may be behind it, and for nothing else.
        behind = {name: each for name, each in self.causes.items() if known & each.explains}
        case.diagnosis = diagnose(run.context_for(case), behind) or before
        said = self._notification_reason(case)
        if said is not None:
            case.notified_detectors |= known
            case.is_cause_notified = case.diagnosis is not None
            return said
        return NotificationReason.UPDATED if has_new_incident or case.diagnosis != before else None

    def _notification_reason(self, case: Case) -> NotificationReason | None:
        """Why people are to be told of a case as it is now; None where they know enough of it."""
        louder = case.escalate()
        if not case.notified_detectors:
            return NotificationReason.OPENED
        if louder:
            return NotificationReason.ESCALATED
        cause = None if case.diagnosis is None else self.causes.get(case.diagnosis.cause)
        explained = case.notified_detectors | (cause.explains if cause is not None else set())
        for name, incident in reversed(case.incidents.items()):
            if incident.key.detector not in explained:
                # The newest stands last: it is what the page speaks of.
                case.incidents[name] = case.incidents.pop(name)
                return NotificationReason.INCIDENT_ADDED
        return (
            NotificationReason.CAUSE_FOUND
            if cause is not None and not case.is_cause_notified
            else None
        )


def _merge_symptoms(one: Symptom, other: Symptom) -> Symptom:
    """Two incidents of one detector: the one that began first, and how often in all."""
    first = other if other.onset_step < one.onset_step else one
    return replace(first, occurrences=one.occurrences + other.occurrences)


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
    )
