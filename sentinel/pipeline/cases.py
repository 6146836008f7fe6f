"""Cases: incidents that may have a common cause, notified as one.

A case opens with its first incident above severity info, the lead, and has the lead's name. An
incident joins it within `MAX_JOIN_GAP_STEPS` steps or `MAX_JOIN_GAP_SECONDS` of the last one, if
one cause can explain it and an incident of the case. A rise of the severity is an escalation; a
join, another cause, culprit or date is an update. A case is dated by what its cause explains, or by
its lead without a cause; an incident that joins never takes the last good checkpoint from it, but
an onset that is estimated later can. A critical case that fires when its run finishes is notified
as ended, and stays open. A case is resolved with the last of its incidents. Incidents that end a
run never join a case, so that a dead run is always notified.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import inf
from statistics import median

from sentinel.model.checkpoint_clause import fit_checkpoint_clause
from sentinel.model.diagnosis import (
    MAX_EFFECT_DELAY_POINTS,
    RESUMED_STEP_KEY,
    CaseContext,
    Cause,
    Diagnosis,
    PossibleCause,
    Symptom,
    effects_of,
)
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident, IncidentState, Onset, Resolution
from sentinel.model.notification import (
    Notification,
    NotificationReason,
    case_dates,
    dates_case,
    redate_diagnosis,
)
from sentinel.model.record import (
    EVAL,
    HEARTBEAT,
    METADATA,
    SAMPLE,
    STAGE,
    START,
    STEP,
    TRAINING,
    WHOLE_RUN,
    YEAR_2001,
    Record,
)
from sentinel.pipeline.diagnose import Assessment, assess
from sentinel.pipeline.recent_points import RecentPoints
from sentinel.signals.catalogue import SIGNALS
from sentinel.signals.usual_learning_rate import OPTIONAL_METADATA

MAX_JOIN_GAP_STEPS = 200
"""Logged steps between incidents of one case. In recorded runs, a policy collapsed within 80 steps
of its first symptom; with 150 to 200, each of these runs is one case."""

MAX_JOIN_GAP_SECONDS = 60.0
"""The same in seconds, for steps of milliseconds: the shortest time for which an incident fires.
The times are those of the records; a log without times counts steps only."""

SEPARATE_DETECTORS = frozenset({"reward_stalled", "reward_collapse"})
"""They have no common case: the fall of a reward is another event than that it never rose."""

RUN_END_DETECTORS = frozenset({"run_died", "run_failed", "run_stalled"})
"""Detectors whose incidents never join a case."""

MAX_RESOLVED_PER_CASE = 16
"""Resolved incidents of a case that are stored, the newest, besides the lead."""

MAX_NAMES_PER_RUN = 1024
"""Metadata keys, and values, stored for a run; above it only catalogue signals are."""

HISTORY_SIGNALS = (
    "loss", "reward", "reward_std", "frac_zero_std", "completion_length", "truncated_fraction",
    "entropy", "kl_ref", "kl_mismatch", "clip_fraction", "explained_variance", "grad_norm",
    "learning_rate", "eval_loss",
)  # fmt: skip
"""Signals whose newest values are stored for causes."""

HISTORY_POINTS = 96
"""Values stored of each of these signals."""

MAX_UNNOTIFIED = 64
"""Incidents without notification that are stored, the newest."""

MIN_COURSE_POINTS = 8
"""Values of loss or reward in a level; a run is as before an incident if one of its newest
`HISTORY_POINTS` values has such a level."""

ONSET_MARGIN_POINTS = 8
"""Logged values by which an incident can have begun before the onset that its detector reported.
On labelled runs, detectors report most onsets 0 to 8 values late."""

REASSESS_AFTER_STEPS = (5, 10, 20, 40, 80, 160)
"""Logged steps after the newest incident of a case at which it is diagnosed again: some
observations need values after the onset."""

_OPTIONAL_NAMES = frozenset(OPTIONAL_METADATA)
_METADATA_EVENTS = (START, METADATA)
_VALUE_EVENTS = (STEP, EVAL, SAMPLE, HEARTBEAT)


@dataclass(frozen=True, slots=True)
class RunPosition:
    """How far a run was: its logged steps, and the time in seconds of its newest record."""

    step_count: int
    time: float

    def is_near(self, other: RunPosition) -> bool:
        """Whether an incident at one of them can be of one case with one at the other."""
        if abs(self.step_count - other.step_count) <= MAX_JOIN_GAP_STEPS:
            return True
        has_times = min(self.time, other.time) >= YEAR_2001
        return has_times and abs(self.time - other.time) <= MAX_JOIN_GAP_SECONDS


@dataclass(slots=True)
class Case:
    """The incidents of a case by name in their present state, the lead first.

    `last_join` is the position of the run when the last incident joined. `is_opened` is whether it
    was notified, with `notified_severity` and `notified_rank`; `update_count` counts its updates.
    `withdrawal` is why a cause that it had was withdrawn.
    """

    incidents: dict[str, Incident]
    last_join: RunPosition
    notified_severity: Severity
    resolved_names: set[str] = field(default_factory=set)
    diagnosis: Diagnosis | None = None
    possible_causes: tuple[PossibleCause, ...] = ()
    withdrawal: str = ""
    is_opened: bool = False
    notified_rank: int | None = None
    update_count: int = 0

    @property
    def lead(self) -> Incident:
        """The incident that opened the case."""
        return next(iter(self.incidents.values()))

    @property
    def is_over(self) -> bool:
        """Whether all of its incidents ended."""
        return self.resolved_names.issuperset(self.incidents)

    def set_diagnosis(self, assessment: Assessment, *, withdraw: bool) -> None:
        """Replace the diagnosis; without a new one, the present one stays unless `withdraw`.

        One that is contradicted never stays. Dates that were notified stay if the new ones have no
        checkpoint, or, for the same cause, a later one, which may be damaged.
        """
        diagnosis = assessment.diagnosis
        if diagnosis is None:
            # Evidence expires with time, which does not refute a cause; a further incident can, and
            # a rank that turns out to be the culprit.
            self.refute(assessment)
            if withdraw and self.diagnosis is not None:
                self.withdrawal = f"The evidence for {self.diagnosis.title} is not sufficient."
                self.diagnosis = None
            if self.diagnosis is None:
                self.possible_causes = assessment.possible_causes
            return
        self.possible_causes, self.withdrawal = (), ""
        onset_step, last_good_step = case_dates(self.lead, self.diagnosis)
        is_same_cause = self.diagnosis is not None and self.diagnosis.cause == diagnosis.cause
        if (
            self.is_opened
            and last_good_step is not None
            and (
                diagnosis.last_good_step is None
                or (is_same_cause and diagnosis.last_good_step > last_good_step)
            )
        ):
            onset_incident = self.lead.name
            if self.diagnosis is not None and dates_case(self.lead, self.diagnosis):
                onset_incident = self.diagnosis.onset_incident
            diagnosis = replace(
                diagnosis,
                onset_step=onset_step,
                last_good_step=last_good_step,
                onset_incident=onset_incident,
            )
        self.diagnosis = diagnosis

    def refute(self, assessment: Assessment) -> None:
        """Withdraw the diagnosis if an observation contradicts its cause."""
        if self.diagnosis is not None and self.diagnosis.cause in assessment.contradicted:
            observation = assessment.contradicted[self.diagnosis.cause]
            self.withdrawal = f"The cause is not {self.diagnosis.title}. {observation}"
            self.diagnosis = None

    def set_onset(self, name: str, onset: Onset) -> None:
        """Replace the dates of an incident of the case, in the diagnosis too."""
        incident = self.incidents[name] = replace(self.incidents[name])
        if self.diagnosis is not None:
            others = [each for each in self.incidents.values() if each.name != name]
            self.diagnosis = redate_diagnosis(self.diagnosis, name, onset, others)
        incident.set_onset(onset)

    def build_notification(
        self, reason: NotificationReason, step: int, time: float
    ) -> Notification:
        """The notification of the case at that step and time."""
        lead, *others = (
            replace(each, remedy=fit_checkpoint_clause(each.remedy, each.last_good_step))
            for each in self.incidents.values()
        )
        lead.severity = self.notified_severity
        if reason is NotificationReason.ENDED:
            ends = (each.lasted_until for each in self.incidents.values())
            lead.state, lead.resolution = IncidentState.FIRING, next(filter(None, ends))
            lead.resolved_step = lead.resolved_time = None
        elif reason is NotificationReason.RESOLVED:
            last = max(self.incidents.values(), key=lambda each: each.resolved_time or 0.0)
            lead.state = IncidentState.RESOLVED
            lead.resolved_step, lead.resolved_time = last.resolved_step, last.resolved_time
            lead.resolution = last.resolution
            lead.ended = next((each.ended for each in self.incidents.values() if each.ended), None)
            step = step if last.resolved_step is None else last.resolved_step
        diagnosis = self.diagnosis
        if diagnosis is not None:
            remedy = fit_checkpoint_clause(diagnosis.remedy, diagnosis.last_good_step)
            diagnosis = replace(diagnosis, remedy=remedy)
        return Notification(
            reason,
            lead,
            step,
            time,
            diagnosis=diagnosis,
            others=tuple(others),
            number=self.update_count,
            notes=(self.withdrawal,) if self.withdrawal else (),
            possible_causes=self.possible_causes,
        )

    def add(self, incident: Incident, position: RunPosition) -> None:
        """Add an incident, and drop the oldest resolved ones."""
        self.incidents[incident.name], self.last_join = incident, position
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

    `attempt_names` are the names of the optional metadata since the last start, `start_names` those
    of the start itself. `is_restarting` is set from a restart to the first step after it.
    `unnotified_incidents` are of severity info, or resolved without a case, and can be evidence; by
    name, each with the position of its last change and the course before it. `undated_cases` are
    over, but the onset of an incident of theirs is still estimated. `history` has the newest steps
    and finite values of a signal, `recent_steps` the newest logged steps, and `checkpoint_steps`
    the known checkpoints.
    """

    step_count: int = 0
    time: float = 0.0
    is_restarting: bool = False
    metadata: dict[str, str | float] = field(default_factory=dict)
    attempt_names: set[str] = field(default_factory=set)
    start_names: set[str] = field(default_factory=set)
    values: dict[str, float] = field(default_factory=dict)
    unnotified_incidents: dict[str, tuple[RunPosition, Incident, float]] = field(
        default_factory=dict
    )
    open_cases: list[Case] = field(default_factory=list)
    undated_cases: list[Case] = field(default_factory=list)
    history: RecentPoints = field(
        default_factory=lambda: RecentPoints(HISTORY_POINTS, is_finite=True)
    )
    recent_steps: deque[int] = field(default_factory=lambda: deque(maxlen=HISTORY_POINTS))
    checkpoint_steps: Sequence[int] = ()

    def update(self, record: Record, signals: tuple[str, ...]) -> None:
        """Update metadata, values, time and step count from a record.

        `signals` are those of HISTORY_SIGNALS that it has.
        """
        event, self.time = record.event, record.time
        if event in _VALUE_EVENTS:
            self.values.update(record.values)
            if len(self.values) > MAX_NAMES_PER_RUN:
                self.values = {n: x for n, x in self.values.items() if n in SIGNALS}
        if event is STEP:
            if self.is_restarting:
                self.is_restarting, self.metadata[RESUMED_STEP_KEY] = False, record.step
            self.step_count += 1
            self.recent_steps.append(record.step)
            self.history.add(record.step, record.values, signals)
        elif event in _METADATA_EVENTS:
            self._update_metadata(record)
        elif event is TRAINING:
            self.is_restarting = False
            self.metadata.pop(RESUMED_STEP_KEY, None)

    def _update_metadata(self, record: Record) -> None:
        self.metadata.update(record.values)
        self.metadata.update(record.attributes)
        self.metadata = dict(list(self.metadata.items())[:MAX_NAMES_PER_RUN])
        names = (record.values.keys() | record.attributes) & _OPTIONAL_NAMES
        if record.event is START:
            self.attempt_names, self.start_names = set(), set(names)
            self.is_restarting = record.attempt > 0 or self.step_count > 0
        self.attempt_names |= names

    def split_rows(self) -> None:
        """Store what was added in few plain values, as before a snapshot."""
        self.history.read()

    def drop_training_metadata(self) -> None:
        """Drop what another training may lack, unless it was given with its attempt."""
        known = self.attempt_names if self.is_restarting else self.start_names
        self.attempt_names = set(known)
        self.metadata = {
            name: value
            for name, value in self.metadata.items()
            if name not in _OPTIONAL_NAMES or name in known
        }

    def start_anew(self) -> None:
        """Forget the levels and the evidence of the training or stage that is over."""
        self.values.clear()
        self.unnotified_incidents.clear()
        self.recent_steps.clear()
        self.history.clear()

    @property
    def position(self) -> RunPosition:
        """The present one."""
        return RunPosition(self.step_count, self.time)

    @property
    def steps_per_point(self) -> float:
        """The mean number of steps between logged steps, at least 1."""
        gaps = len(self.recent_steps) - 1
        return 1.0 if gaps < 1 else max(1.0, (self.recent_steps[-1] - self.recent_steps[0]) / gaps)

    def add_unnotified(self, incident: Incident) -> None:
        """Store an incident without notification as possible evidence."""
        known = self.unnotified_incidents.get(incident.name)
        level = self._course_before(incident.onset_step) if known is None else known[2]
        self.unnotified_incidents[incident.name] = self.position, incident, level
        self.drop_expired()

    def drop_expired(self) -> None:
        """Drop stored incidents that ended long ago, and from which the run has recovered."""
        kept = [
            (name, stored)
            for name, stored in self.unnotified_incidents.items()
            if stored[1].state is IncidentState.FIRING
            or self.position.is_near(stored[0])
            or not self._has_recovered(stored[2])
        ]
        self.unnotified_incidents = dict(kept[-MAX_UNNOTIFIED:])

    def _course_before(self, step: int) -> float:
        """The loss, or the reward with its sign reversed, before that step; inf if unknown."""
        before = [value for at, value in self._course() if at < step]
        return median(before) if len(before) >= MIN_COURSE_POINTS else inf

    def _course(self) -> list[tuple[int, float]]:
        points = self.history.read()
        rewards = [(step, -value) for step, value in points.get("reward", ())]
        return rewards or [*points.get("loss", ())]

    def _has_recovered(self, level: float) -> bool:
        """Whether any of the newest levels of the course is as good as that one."""
        values = [value for _, value in self._course()]
        return len(values) < HISTORY_POINTS or any(
            median(values[n : n + MIN_COURSE_POINTS]) <= level
            for n in range(0, HISTORY_POINTS, MIN_COURSE_POINTS)
        )

    def drop_dated(self, undated: Collection[str]) -> None:
        """Drop the cases that are over, and whose incidents are not among `undated`."""
        self.undated_cases = [
            case for case in self.undated_cases if not case.incidents.keys().isdisjoint(undated)
        ]

    def context_for(self, case: Case) -> CaseContext:
        """The symptoms of the case and of stored incidents, with metadata and values.

        A stored incident that was over before the case began is a symptom of it only if the run
        has not recovered since.
        """
        self.drop_expired()
        own = self._symptoms_from(case.incidents.values())
        begun = min(symptom.earliest_onset for symptom in own.values())
        unnotified = (
            incident
            for _, incident, level in self.unnotified_incidents.values()
            if incident.resolved_step is None
            or incident.resolved_step >= begun
            or not self._has_recovered(level)
        )
        others = (
            incident
            for other in self.open_cases
            if other is not case
            for name, incident in other.incidents.items()
            if name not in other.resolved_names
        )
        history = {
            signal: tuple(points) for signal, points in self.history.read().items() if points
        }
        return CaseContext(
            self._symptoms_from((*case.incidents.values(), *unnotified)),
            self.metadata,
            self.values,
            self._symptoms_from(others),
            history,
            self.steps_per_point,
            tuple(self.checkpoint_steps),
            dict(self.history.ranges()),
        )

    def symptom_from(self, incident: Incident) -> Symptom:
        """The incident as a cause sees it."""
        return _symptom_from(incident, round(ONSET_MARGIN_POINTS * self.steps_per_point))

    def _symptoms_from(self, incidents: Iterable[Incident]) -> dict[str, Symptom]:
        """The symptoms of these incidents, by detector."""
        symptoms: dict[str, Symptom] = {}
        for incident in incidents:
            symptom = self.symptom_from(incident)
            known = symptoms.get(symptom.detector)
            symptoms[symptom.detector] = (
                symptom if known is None else _merge_symptoms(known, symptom)
            )
        return symptoms


@dataclass
class CaseBook:
    """Groups incidents into cases, by the `causes` that can explain them."""

    causes: Mapping[str, Cause] = field(default_factory=dict)
    runs: dict[str, RunCases] = field(default_factory=dict)

    def begin_training(self, run: str) -> None:
        """Prepare the metadata of a run for another training."""
        if run in self.runs:
            self.runs[run].drop_training_metadata()

    def drop_closed(self, names: Collection[str]) -> None:
        """Drop the cases whose incidents another process closed."""
        for run in self.runs.values():
            for case in run.open_cases:
                case.resolved_names |= case.incidents.keys() & names
            run.open_cases = [case for case in run.open_cases if not case.is_over]

    def run_metadata(self, run: str) -> Mapping[str, str | float]:
        """The metadata of a run; empty before its first record."""
        cases = self.runs.get(run)
        return {} if cases is None else cases.metadata

    def critical_names(self, run: str) -> frozenset[str]:
        """The names of the incidents of the critical cases of a run."""
        cases = () if run not in self.runs else self.runs[run].open_cases
        return frozenset(
            name
            for case in cases
            if case.notified_severity is Severity.CRITICAL
            for name in case.incidents
        )

    def update(
        self,
        record: Record,
        changes: Sequence[Notification | Incident],
        checkpoint_steps: Sequence[int] = (),
        undated: Collection[str] = (),
        signals: tuple[str, ...] | None = None,
    ) -> tuple[Notification, ...]:
        """The case notifications that follow from the changes of incidents at this record.

        `checkpoint_steps` are the steps of the checkpoints that are known, the oldest first, and
        `undated` the names of the incidents whose onset is still estimated. `signals` are those of
        HISTORY_SIGNALS that the record has, if they are known.
        """
        run = self.runs.get(record.run)
        if run is None:
            run = self.runs[record.run] = RunCases()
        run.update(record, history_signals(record.values) if signals is None else signals)
        run.checkpoint_steps = checkpoint_steps
        if not changes and not run.open_cases and record.event is STEP:
            return ()
        joined: list[Case | None] = []
        for change in changes:
            if isinstance(change, Notification):
                is_resolved = change.reason is NotificationReason.RESOLVED
                incident = change.incident
            else:
                is_resolved, incident = False, change
            joined.append(self._assign_to_case(run, incident, is_resolved=is_resolved))
        if record.event in (STAGE, TRAINING):
            # After its changes: what ended with it is no evidence for what follows.
            run.start_anew()
        if not changes:
            return self._reassess_later(run, record)
        ended = {
            change.incident.name
            for change in changes
            if isinstance(change, Notification) and change.reason is NotificationReason.ENDED
        }
        reasons: list[tuple[Case, NotificationReason | None]] = []
        for case in run.open_cases:
            has_new_incident = any(case is each for each in joined)
            if case.is_over and not case.is_opened:
                # It was found at the end of the run, and is notified all the same.
                reasons.append((case, NotificationReason.OPENED))
            reason = self._reassess(run, case, has_new_incident=has_new_incident)
            if not ended.isdisjoint(case.incidents):
                # Its state contains what an update would have.
                reason = None if reason is NotificationReason.UPDATED else reason
                reasons += [(case, reason), (case, NotificationReason.ENDED)]
            else:
                reasons.append((case, reason))
        run.undated_cases += [case for case in run.open_cases if case.is_over]
        run.drop_dated(undated)
        run.open_cases = [case for case in run.open_cases if not case.is_over]
        # A failure comes before the end of what it ends, so that it is sent first.
        reasons.sort(key=lambda each: each[1] is NotificationReason.RESOLVED)
        return tuple(
            case.build_notification(reason, record.step, record.time)
            for case, reason in reasons
            if reason is not None
        )

    def _reassess_later(self, run: RunCases, record: Record) -> tuple[Notification, ...]:
        """Diagnose cases again, some steps after their last incident.

        A case with a cause is if that is contradicted now, or has more evidence.
        """
        if record.event is not STEP or not run.open_cases:
            return ()
        due = [
            case
            for case in run.open_cases
            if run.step_count - case.last_join.step_count in REASSESS_AFTER_STEPS
            and (case.diagnosis is None or self._has_changed(run, case, case.diagnosis))
        ]
        reasons = [(case, self._reassess(run, case, has_new_incident=False)) for case in due]
        return tuple(
            case.build_notification(reason, record.step, record.time)
            for case, reason in reasons
            if reason is not None
        )

    def _has_changed(self, run: RunCases, case: Case, diagnosis: Diagnosis) -> bool:
        """Whether the cause of the case has more evidence now, or is contradicted."""
        now = self._assess_again(run, case, diagnosis)
        has_more = now.diagnosis is not None and now.diagnosis.confidence > diagnosis.confidence
        return has_more or bool(now.contradicted)

    def _assess_again(self, run: RunCases, case: Case, diagnosis: Diagnosis) -> Assessment:
        """The assessment of the cause that the case has, alone."""
        names = self.causes.keys() & {diagnosis.cause}
        return assess(run.context_for(case), {name: self.causes[name] for name in names}, case.lead)

    def set_onset(
        self, record: Record, name: str, onset: Onset | None, undated: Collection[str]
    ) -> tuple[Incident | None, tuple[Notification, ...]]:
        """Replace the dates of the incident of that name by those that were estimated, if any.

        Returns the incident and the case notifications that follow. `undated` is as in `update`.
        """
        run = self.runs.get(record.run)
        if run is None:
            return None, ()
        cases = [case for case in (*run.open_cases, *run.undated_cases) if name in case.incidents]
        run.drop_dated(undated)
        if onset is None:
            return None, ()
        _, changed, _ = run.unnotified_incidents.get(name, (None, None, None))
        if changed is not None:
            changed.set_onset(onset)
        notifications = []
        step = run.recent_steps[-1] if run.recent_steps else record.step
        for case in cases:
            before = case.incidents[name]
            case.set_onset(name, onset)
            changed = case.incidents[name]
            reason: NotificationReason | None = NotificationReason.RESOLVED
            if not case.is_over:
                reason = self._reassess(run, case, has_new_incident=False)
                is_moved = (before.onset_step, before.last_good_step) != (
                    changed.onset_step, changed.last_good_step,
                )  # fmt: skip
                if reason is None and is_moved:
                    case.update_count, reason = case.update_count + 1, NotificationReason.UPDATED
            if reason is not None:
                notifications.append(case.build_notification(reason, step, record.time))
        return None if changed is None else replace(changed), tuple(notifications)

    def current_notifications(self) -> Iterator[Notification]:
        """A notification of each open case in its present state."""
        for run in self.runs.values():
            for case in run.open_cases:
                yield case.build_notification(
                    NotificationReason.OPENED, case.lead.opened_step, case.lead.opened_time
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
            run.open_cases.append(Case({name: incident}, run.position, incident.severity))
        else:
            case.add(incident, run.position)
        return case

    def _find_case(self, run: RunCases, incident: Incident) -> Case | None:
        """The newest open case that can have a common cause with this incident."""
        recent = (case for case in reversed(run.open_cases) if run.position.is_near(case.last_join))
        related = (
            case
            for case in recent
            if any(self._share_cause(run, incident, other) for other in case.incidents.values())
        )
        return next(related, None)

    def _share_cause(self, run: RunCases, one: Incident, other: Incident) -> bool:
        """Whether one cause can explain both, or one of them with the other as its effect."""
        detectors = {one.key.detector, other.key.detector}
        if detectors == SEPARATE_DETECTORS or not detectors.isdisjoint(RUN_END_DETECTORS):
            return False
        return len(detectors) == 1 or any(
            detectors <= cause.explains
            or _is_effect(cause, run, one, other)
            or _is_effect(cause, run, other, one)
            for cause in self.causes.values()
        )

    def _reassess(
        self, run: RunCases, case: Case, *, has_new_incident: bool
    ) -> NotificationReason | None:
        """Update the diagnosis of a case; returns the reason for a notification, if any."""
        if case.is_over:
            if case.diagnosis is not None:
                case.refute(self._assess_again(run, case, case.diagnosis))
            return NotificationReason.RESOLVED
        before = case.diagnosis, case.notified_rank, [each.cause for each in case.possible_causes]
        detectors = {incident.key.detector for incident in case.incidents.values()}
        # Stored incidents are evidence only for causes that explain an incident of the case.
        assessment = assess(run.context_for(case), self.causes, case.lead, detectors)
        has_new_culprit = case.notified_rank is None is not case.lead.finding.rank
        case.set_diagnosis(assessment, withdraw=has_new_incident or has_new_culprit)
        is_escalated, case.notified_rank = case.escalate(), case.lead.finding.rank
        if not case.is_opened:
            case.is_opened = True
            return NotificationReason.OPENED
        if is_escalated:
            return NotificationReason.ESCALATED
        possible = [each.cause for each in case.possible_causes]
        if has_new_incident or (case.diagnosis, case.notified_rank, possible) != before:
            case.update_count += 1
            return NotificationReason.UPDATED
        return None


def history_signals(values: Mapping[str, float]) -> tuple[str, ...]:
    """Those of HISTORY_SIGNALS that a record with these values has."""
    return tuple(signal for signal in HISTORY_SIGNALS if signal in values)


def _is_effect(cause: Cause, run: RunCases, incident: Incident, other: Incident) -> bool:
    """Whether the incident follows from the other one, which the cause explains."""
    if other.key.detector not in cause.explains or incident.key.detector not in effects_of(cause):
        return False
    effect, symptom = run.symptom_from(incident), run.symptom_from(other)
    return effect.can_follow(symptom, MAX_EFFECT_DELAY_POINTS * run.steps_per_point)


def _merge_symptoms(symptom: Symptom, other: Symptom) -> Symptom:
    """The symptom of two incidents of one detector: the earlier one, with all occurrences."""
    first = other if other.onset_step < symptom.onset_step else symptom
    return replace(
        first,
        occurrences=symptom.occurrences + other.occurrences,
        is_over=symptom.is_over and other.is_over,
    )


def _symptom_from(incident: Incident, margin: int) -> Symptom:
    """The symptom of an incident, which began up to `margin` steps before an uncertain onset."""
    finding, onset = incident.finding, incident.onset_step
    rank = incident.key.rank if incident.key.rank != WHOLE_RUN else finding.rank
    return Symptom(
        incident.key.detector,
        incident.severity,
        onset,
        incident.opened_step,
        finding.summary,
        finding.evidence,
        incident.last_good_step,
        rank,
        incident.flaps + 1,
        incident.onset_range or (onset - margin, max(onset, incident.opened_step)),
        incident.name,
        incident.state is IncidentState.RESOLVED and incident.resolution is Resolution.CLEARED,
        finding.remedy or "",
    )
