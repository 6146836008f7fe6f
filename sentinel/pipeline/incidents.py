"""Turns findings into incidents with states and deduplication.

The end of the run ends its incidents: all of them if it was stopped; if it failed, all others end
with the incident of the failure. If it finished, those of critical cases go on firing. These, and
the failure, end at the first step of the next attempt, when they are acknowledged, or a day after
the end of the run.
What was ended so is not found again in that attempt.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from sentinel.model.checkpoint_clause import fit_last_checkpoint
from sentinel.model.finding import (
    Clear,
    Detector,
    DetectorOutput,
    Finding,
    Severity,
    detector_title,
)
from sentinel.model.incident import Incident, IncidentKey, IncidentState, Onset, Resolution
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.rank_end import RankEnd
from sentinel.model.record import HEARTBEAT, SAVE, START, STEP, STOP, TRAINING, YEAR_2001, Record
from sentinel.pipeline.onset_request import OnsetRequest
from sentinel.signals.setting_names import with_setting_names

MAX_CHECKPOINTS_PER_RUN = 64
"""Steps of the newest checkpoints that are stored for each run."""

FAILURE_DETECTORS = frozenset({"run_died", "run_failed"})
"""Detectors whose incident is the failure of the run."""

LASTING_DETECTORS = FAILURE_DETECTORS | {"node_lost"}
"""Detectors whose incident ends at the next attempt, by acknowledgement or with time."""

STALL_DETECTOR = "run_stalled"
"""Detector whose incident follows from a failure."""

PASSING_DETECTORS = frozenset({STALL_DETECTOR, "node_lost", "disk_filling", "memory_creep"})
"""Detectors of problems that a run which finishes has overcome."""

MAX_LASTING_SECONDS = 24 * 3600.0
"""Time after the end of the run after which an incident that outlives it ends."""

ACKNOWLEDGED_KEY = "acknowledged"
"""Attribute of a heartbeat: the detectors whose incident is acknowledged, separated by commas."""

_RESOLUTIONS = {
    "finished": Resolution.RUN_FINISHED,
    "interrupted": Resolution.RUN_STOPPED,
    "stopped": Resolution.RUN_STOPPED,
}
"""Why the incidents of a run end, by the outcome of the run."""

_CONTINUATIONS = {STEP: Resolution.RESUMED, TRAINING: Resolution.RESTARTED}
"""Why a failure ends, by the first event of the next attempt that shows it."""

_FOUND_AGAIN = frozenset({
    Resolution.CORRECTED, Resolution.RESUMED, Resolution.RESTARTED, Resolution.TRAINING_FINISHED,
    Resolution.STAGE_FINISHED, Resolution.STARTED_AGAIN,
})  # fmt: skip
"""Reasons after which the same problem can be found again in that attempt."""

_FINISHED = frozenset({
    Resolution.RUN_FINISHED, Resolution.TRAINING_FINISHED, Resolution.STAGE_FINISHED,
})  # fmt: skip
"""Reasons that do not apply to what was over before, only not yet for long enough."""

CriticalNames = Callable[[str], Collection[str]]
"""Gives the names of the incidents of the critical cases of a run."""

INFO_UPDATE_FACTOR = 1.1
"""Growth of the first evidence, since it was shown, with which an open incident of severity info
is shown again."""

Metadata = Mapping[str, str | float]
"""Settings and environment of a run, by name."""

_NO_METADATA: Metadata = {}


SAME_TIME_SECONDS = 10.0
"""Difference in time up to which an incident at the same step is a known episode."""


@dataclass(frozen=True, slots=True)
class KnownEpisode:
    """An episode that an earlier agent stored, whose records may be processed again."""

    episode: int
    opened_step: int
    opened_time: float
    is_open: bool

    def is_at(self, record: Record) -> bool:
        """Whether it opened at that record."""
        is_same_time = abs(self.opened_time - record.time) <= SAME_TIME_SECONDS
        return self.opened_step == record.step and is_same_time


def _no_names(_: str) -> Collection[str]:
    return ()


@dataclass
class IncidentBook:
    """Open incidents by key, and the number of the last episode of each.

    `findings_to_fire` findings make a pending incident fire (detectors bring their own persistence,
    so the default is 1). Clear records in a row resolve it: at least `clears_to_resolve` of them,
    the last at least `resolve_seconds` after the first. After `cooldown_records` and
    `cooldown_seconds` more the episode ends, with a notification; until then a finding re-opens it
    without one, which counts as a flap. Evaluations, saves and heartbeats count like steps. The
    seconds are those of the records, and are not required of a log without times.
    `ended_runs` are the runs that finished or were stopped, and `ended_keys` the incidents that
    another reason than their detector ended, both until the next start of the run.
    `undated` are the incidents, by name, whose onset is still estimated.
    `known_episodes` are stored ones of which this state knows nothing, the newest last.
    `active_times` are the times of the last record of each run that is no heartbeat.
    """

    findings_to_fire: int = 1
    clears_to_resolve: int = 16
    resolve_seconds: float = 60.0
    cooldown_records: int = 32
    cooldown_seconds: float = 240.0
    open_incidents: dict[IncidentKey, Incident] = field(default_factory=dict)
    last_episodes: dict[IncidentKey, int] = field(default_factory=dict)
    known_episodes: dict[IncidentKey, list[KnownEpisode]] = field(default_factory=dict)
    checkpoint_steps: dict[str, deque[int]] = field(default_factory=dict)
    ended_runs: set[str] = field(default_factory=set)
    ended_keys: set[IncidentKey] = field(default_factory=set)
    undated: dict[str, OnsetRequest] = field(default_factory=dict)
    active_times: dict[str, float] = field(default_factory=dict)
    _has_new_failure: bool = False

    def update(
        self, record: Record, critical_names: CriticalNames = _no_names
    ) -> tuple[Notification, ...]:
        """Update checkpoints, and end the incidents that the record ends.

        `critical_names` gives the incidents of critical cases. Returns the notifications of the
        incidents that ended, or that outlive their run.
        """
        if record.event is not HEARTBEAT:
            self.active_times[record.run] = record.time
        if record.event is START:
            self.ended_runs.discard(record.run)
            self.ended_keys = {key for key in self.ended_keys if key.run != record.run}
        if record.event is SAVE:
            steps = self.checkpoint_steps.setdefault(
                record.run, deque(maxlen=MAX_CHECKPOINTS_PER_RUN)
            )
            steps.append(record.step)
        if not self.open_incidents and record.event is not STOP:
            return ()
        has_new_failure, self._has_new_failure = self._has_new_failure, False
        own = [
            each
            for each in self.open_incidents.values()
            if each.key.run == record.run and each.state is not IncidentState.PENDING
        ]
        if record.event is STOP:
            return tuple(self._end_at_stop(own, record, critical_names(record.run)))
        if has_new_failure:
            return tuple(self._end_at_failure(own, record))
        return tuple(self._end_lasting(own, record))

    def start_anew(
        self,
        record: Record,
        detectors: Collection[str],
        resolution: Resolution,
        critical_names: Collection[str] = (),
    ) -> Iterator[Notification]:
        """End the incidents of these detectors: another training or stage begins.

        Another training does not continue from the checkpoints of the last one, which a critical
        problem may have outlived. `critical_names` are the incidents of critical cases.
        """
        if record.event is TRAINING:
            self.checkpoint_steps.pop(record.run, None)
        for key, incident in [*self.open_incidents.items()]:
            if key.run != record.run or key.detector not in detectors:
                continue
            if incident.state is IncidentState.PENDING:
                self._drop_pending(incident)
            else:
                is_ended = incident.is_ended_firing
                if resolution is Resolution.TRAINING_FINISHED and not is_ended:
                    is_ended = _is_damage(incident, critical_names)
                    if is_ended:
                        yield _outlive(incident, record, resolution)
                own = Resolution.STARTED_AGAIN if is_ended else resolution
                yield self._end_incident(incident, record, own)

    def _end_at_stop(
        self, incidents: Iterable[Incident], stop: Record, critical_names: Collection[str]
    ) -> Iterator[Notification]:
        """End what is over; everything if the run was stopped, or finished without damage."""
        resolution = _RESOLUTIONS.get(RankEnd((), stop.time, stop.attributes).outcome)
        if resolution is not None:
            self.ended_runs.add(stop.run)
        for incident in incidents:
            if incident.is_ended_firing:
                continue
            if incident.state is IncidentState.RESOLVED:
                yield self._close_incident(incident, stop)
            elif resolution is Resolution.RUN_FINISHED and _is_damage(incident, critical_names):
                yield _outlive(incident, stop, resolution)
            elif resolution is not None:
                yield self._end_incident(incident, stop, resolution)

    def _end_at_failure(
        self, incidents: Sequence[Incident], record: Record
    ) -> Iterator[Notification]:
        """End all other incidents: the failure is what matters now."""
        failures = [each for each in incidents if each.key.detector in FAILURE_DETECTORS]
        newest = max(failures, key=lambda each: each.opened_time)
        for incident in incidents:
            is_failure = incident.key.detector in FAILURE_DETECTORS
            if incident is newest or incident.key.detector in LASTING_DETECTORS - FAILURE_DETECTORS:
                continue
            is_corrected = is_failure and incident.attempt == record.attempt
            resolution = Resolution.CORRECTED if is_corrected else Resolution.RUN_FAILED
            yield self._end_incident(incident, record, resolution)

    def _end_lasting(self, incidents: Iterable[Incident], record: Record) -> Iterator[Notification]:
        """End the incidents that outlive their run and are over, acknowledged or old."""
        for incident in incidents:
            if not outlives_run(incident):
                continue
            if record.event in _CONTINUATIONS and record.attempt > incident.attempt:
                is_ended = incident.is_ended_firing
                own = Resolution.STARTED_AGAIN if is_ended else _CONTINUATIONS[record.event]
                yield self._end_incident(incident, record, own)
            elif record.event is not HEARTBEAT:
                continue
            elif incident.key.detector in record.attributes.get(ACKNOWLEDGED_KEY, "").split(","):
                yield self._end_incident(incident, record, Resolution.ACKNOWLEDGED)
            elif record.time - self._end_time(incident) >= MAX_LASTING_SECONDS:
                yield self._end_incident(incident, record, Resolution.EXPIRED)

    def _end_time(self, incident: Incident) -> float:
        """When the run of the incident was last active; the failure of a run is found later."""
        return max(incident.opened_time, self.active_times.get(incident.key.run, 0.0))

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
        resolving, re-opening, its rank that is known now, or at severity info a larger value; else
        None.
        """
        incident = self.open_incidents.get(key)
        is_ended = (
            self._is_ended(key, record.attempt) if incident is None else incident.is_ended_firing
        )
        if output is None or is_ended:
            return None
        if isinstance(output, Clear):
            return None if incident is None else self._record_clear(incident, record, output)
        severity = output.severity or detector.severity
        if incident is None:
            incident = self._open_incident(key, record, output, detector, metadata)
        else:
            incident.finding_count += 1
        is_corrected = _is_corrected(incident, output)
        if is_corrected:
            incident.remedy = self._remedy(key.run, output, detector, metadata)
        before, incident.clear_count, incident.finding = incident.severity, 0, output
        incident.finding_step = record.step
        incident.clear_step = incident.clear_time = None
        incident.severity = min(before, severity, key=lambda each: each.order)
        is_reopened = incident.state is IncidentState.RESOLVED
        if is_reopened:
            incident.state, incident.flaps = IncidentState.FIRING, incident.flaps + 1
            incident.resolved_step = incident.resolved_time = incident.resolution = None
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
        value = _first_value(output)
        is_larger = value > INFO_UPDATE_FACTOR * incident.shown_value
        is_update = is_reopened or is_corrected
        is_update |= is_larger and incident.severity is Severity.INFO
        incident.shown_value = value if is_update else incident.shown_value
        return replace(incident) if is_update else None

    def set_onset(self, name: str, onset: Onset) -> Onset:
        """Replace the dates of an undated incident by those that were estimated.

        Returns the onset with the last checkpoint before it.
        """
        request = self.undated.pop(name)
        last_good_step = last_checkpoint_before(onset.earliest, request.checkpoint_steps)
        onset = replace(onset, last_good_step=last_good_step)
        for incident in self.open_incidents.values():
            if incident.name == name:
                incident.set_onset(onset)
        return onset

    def drop_closed(self, resolutions: Mapping[str, Resolution]) -> set[str]:
        """Drop the firing incidents that another process closed, given by name; returns those."""
        dropped = set[str]()
        for key, incident in [*self.open_incidents.items()]:
            resolution = resolutions.get(incident.name)
            if resolution is None or incident.state is not IncidentState.FIRING:
                continue
            if outlives_run(incident) and resolution not in _FOUND_AGAIN:
                self.ended_keys.add(key)
            del self.open_incidents[key]
            self.undated.pop(incident.name, None)
            dropped.add(incident.name)
        return dropped

    def _is_ended(self, key: IncidentKey, attempt: int) -> bool:
        """Whether the run, or that incident with it, ended, so that none is opened."""
        if key in self.ended_keys:
            return True
        if key.detector in FAILURE_DETECTORS:
            return False
        # The failure of an earlier attempt stays open until the first step of this one, which may
        # hang before it.
        failed = (
            each.detector
            for each, incident in self.open_incidents.items()
            if each.run == key.run and incident.attempt >= attempt
        )
        return key.run in self.ended_runs or (
            key.detector == STALL_DETECTOR and not FAILURE_DETECTORS.isdisjoint(failed)
        )

    def _open_incident(
        self,
        key: IncidentKey,
        record: Record,
        finding: Finding,
        detector: Detector,
        metadata: Metadata,
    ) -> Incident:
        self.last_episodes[key] = episode = self._next_episode(key, record)
        onset = record.step if finding.onset_step is None else finding.onset_step
        incident = Incident(
            key=key,
            episode=episode,
            severity=finding.severity or detector.severity,
            signal=finding.signal or detector.signal,
            remedy=self._remedy(key.run, finding, detector, metadata),
            finding=finding,
            onset_step=onset,
            opened_step=record.step,
            opened_time=record.time,
            last_good_step=self._last_good_step(key.run, onset),
            onset_range=finding.onset_range,
            title=detector_title(detector),
            attempt=record.attempt,
        )
        self.open_incidents[key] = incident
        return incident

    def _remedy(self, run: str, finding: Finding, detector: Detector, metadata: Metadata) -> str:
        remedy = fit_last_checkpoint(
            finding.remedy or detector.remedy,
            has_checkpoint=bool(self.checkpoint_steps.get(run)),
        )
        return with_setting_names(remedy, metadata)

    def _next_episode(self, key: IncidentKey, record: Record) -> int:
        """The number of the episode that opens: that of a known one if it is the same."""
        known = self.known_episodes.get(key, [])
        same = next((each for each in known if each.is_at(record)), None)
        if same is None and known and known[-1].is_open:
            # Its opening is not processed again; it still fires.
            same = known[-1]
        if same is None:
            highest = known[-1].episode if known else 0
            return max(self.last_episodes.get(key, 0), highest) + 1
        self.known_episodes[key] = [
            replace(each, opened_step=-1, is_open=False) if each is same else each for each in known
        ]
        return same.episode

    def _last_good_step(self, run: str, onset: int) -> int | None:
        return last_checkpoint_before(onset, self.checkpoint_steps.get(run, ()))

    def _fire(self, incident: Incident, record: Record) -> Notification:
        incident.state, incident.shown_value = IncidentState.FIRING, _first_value(incident.finding)
        incident.opened_step, incident.opened_time = record.step, record.time
        incident.opened_summary = incident.finding.summary
        self._has_new_failure |= incident.key.detector in FAILURE_DETECTORS
        return _notification(NotificationReason.OPENED, incident, record)

    def _record_clear(
        self, incident: Incident, record: Record, clear: Clear
    ) -> Notification | Incident | None:
        if incident.key.detector in FAILURE_DETECTORS and record.attempt > incident.attempt:
            # The next attempt has started, and may fail before its first step.
            return None
        if clear.withdraws and incident.state is IncidentState.FIRING:
            return self._end_incident(incident, record, Resolution.CORRECTED)
        incident.clear_count += 1
        if incident.clear_count == 1:
            incident.clear_step, incident.clear_time = record.step, record.time
        if incident.state is IncidentState.PENDING:
            self._drop_pending(incident)
            return None
        if not _is_clear_for(incident, record, self.clears_to_resolve, self.resolve_seconds):
            return None
        was_resolved = incident.state is IncidentState.RESOLVED
        if not was_resolved:
            incident.state, incident.resolved_step = IncidentState.RESOLVED, incident.clear_step
            incident.resolved_time, incident.resolution = incident.clear_time, Resolution.CLEARED
        count = self.clears_to_resolve + self.cooldown_records
        if _is_clear_for(incident, record, count, self.resolve_seconds + self.cooldown_seconds):
            return self._close_incident(incident, record)
        return None if was_resolved else replace(incident)

    def _drop_pending(self, incident: Incident) -> None:
        """End an incident without a notification: none was sent of it."""
        del self.open_incidents[incident.key]
        self.last_episodes[incident.key] -= 1

    def _end_incident(
        self, incident: Incident, record: Record, resolution: Resolution
    ) -> Notification:
        """End an incident, which may still fire, for a reason other than its detector."""
        is_earlier = outlives_run(incident) and record.attempt > incident.attempt
        if incident.state is not IncidentState.RESOLVED:
            incident.resolve(resolution, record.step, record.time)
            if resolution in _FINISHED and incident.clear_step is not None:
                incident.resolution = Resolution.CLEARED
                incident.resolved_step = incident.clear_step
                incident.resolved_time = incident.clear_time
        # This attempt may fail as an earlier one did.
        if not is_earlier and resolution not in _FOUND_AGAIN:
            self.ended_keys.add(incident.key)
        return self._close_incident(incident, record)

    def _close_incident(self, incident: Incident, record: Record) -> Notification:
        del self.open_incidents[incident.key]
        return _notification(NotificationReason.RESOLVED, incident, record)


def last_checkpoint_before(onset: int, checkpoint_steps: Iterable[int]) -> int | None:
    """The last of the checkpoints, which are in the order of their creation, before `onset`.

    >>> last_checkpoint_before(250, [100, 200, 300])
    200
    """
    return next((step for step in reversed(tuple(checkpoint_steps)) if step < onset), None)


def outlives_run(incident: Incident) -> bool:
    """Whether it ends at the next attempt, by acknowledgement or with time."""
    return incident.key.detector in LASTING_DETECTORS or incident.is_ended_firing


def _outlive(incident: Incident, record: Record, resolution: Resolution) -> Notification:
    """Let an incident fire beyond the end of its run or training, and notify of that end."""
    incident.resolution = resolution
    return _notification(NotificationReason.ENDED, incident, record)


def _is_damage(incident: Incident, critical_names: Collection[str]) -> bool:
    """Whether a critical problem was there to the end, so that what the run saved is affected."""
    is_critical = incident.severity is Severity.CRITICAL or incident.name in critical_names
    is_there = incident.clear_step is None and incident.key.detector not in PASSING_DETECTORS
    return is_critical and is_there


def _is_clear_for(incident: Incident, record: Record, count: int, seconds: float) -> bool:
    """Whether the clear records in a row are at least `count`, over at least `seconds`."""
    since = incident.clear_time
    if incident.clear_count < count or since is None:
        return False
    # A clock that was set back must not keep an incident open.
    return record.time < YEAR_2001 or abs(record.time - since) >= seconds


def _is_corrected(incident: Incident, finding: Finding) -> bool:
    """Whether the rank is found, or another one proves to be the cause of a failure."""
    return finding.rank is not None and (
        incident.finding.rank is None
        or (incident.key.detector in FAILURE_DETECTORS and finding.rank != incident.finding.rank)
    )


def _first_value(finding: Finding) -> float:
    """The size of the first evidence if it is a number, else 0."""
    value = next(iter(finding.evidence.values()), 0.0)
    return abs(value) if isinstance(value, float) else 0.0


def _notification(reason: NotificationReason, incident: Incident, record: Record) -> Notification:
    # A copy, since the incident continues to change.
    step = record.step if incident.resolved_step is None else incident.resolved_step
    return Notification(reason, replace(incident), step, record.time)
