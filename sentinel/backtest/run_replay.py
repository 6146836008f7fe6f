"""The replay of one run with some settings, and what of it a backtest compares."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

from sentinel.config.settings import Settings
from sentinel.model.finding import Severity
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import START, STEP, TRAINING, WHOLE_RUN, YEAR_2001, Record
from sentinel.pipeline import pipeline
from sentinel.pipeline.engine import Result
from sentinel.pipeline.replay import ReplayedIncident, rare_garbage_collection, replay_records
from sentinel.store.stored_log import open_run

SECONDS_PER_DAY = 86_400.0


@dataclass(frozen=True, slots=True)
class SentNotification:
    """A notification that is a message of its own: a case opened, or its state became worse.

    `detector` is that of the incident that leads the case; `cause` is empty if none is known.
    """

    step: int
    reason: str
    severity: str
    detector: str
    cause: str


@dataclass(frozen=True, slots=True)
class FoundIncident:
    """An incident in its last state; `rank` is None if it is of the whole run."""

    detector: str
    rank: int | None
    severity: str
    onset_step: int
    opened_step: int
    resolved_step: int | None


@dataclass(frozen=True, slots=True)
class RunFindings:
    """What a replay found in a run, and how long the run trained.

    `seconds` are those between its steps without the time between its attempts, also where a log
    goes back to an earlier step; 0 if its records have no times. `trained_steps` are the steps in
    that time, also those that are not logged.
    """

    steps: int
    last_step: int
    seconds: float
    trained_steps: int
    notifications: tuple[SentNotification, ...]
    incidents: tuple[FoundIncident, ...]
    notes: tuple[str, ...]

    def days(self, step_seconds: float | None = None) -> float:
        """How long it trained, by `step_seconds` if its records have no times; 0 if unknown."""
        seconds = self.seconds or self.trained_steps * (step_seconds or 0.0)
        return seconds / SECONDS_PER_DAY


def replay_run(path: Path, settings: Settings) -> RunFindings:
    """Replay the run whose database or log is at `path`; nothing is stored or sent.

    The trainings that several processes wrote into one log count as one run. Raises OSError and
    ValueError if it cannot be read.
    """
    writers, parts = [""], list[RunFindings]()
    with rare_garbage_collection():
        for writer in writers:
            findings, others = _replay_writer(path, settings, writer)
            parts.append(findings)
            if not writer:
                writers += others
    return parts[0] if len(parts) == 1 else _joined(parts)


def _replay_writer(path: Path, settings: Settings, writer: str) -> tuple[RunFindings, list[str]]:
    """What was found in the rows of a writer, and the names of the others."""
    source, observer = open_run(path, settings.keys, writer), _Observer()
    result = replay_records(source, pipeline.build(settings), observer.update)
    if not result.records:
        raise ValueError("it holds no record of a step")
    notes = [result.notice] if result.notice else []
    if result.coverage.is_blind:
        notes.append("nothing of it is monitored")
    if result.failed_detectors:
        notes.append(f"{', '.join(result.failed_detectors)} failed")
    findings = RunFindings(
        result.steps,
        observer.last_step,
        observer.seconds,
        observer.trained_steps,
        tuple(observer.notifications),
        tuple(map(_found_incident, result.incidents)),
        tuple(notes),
    )
    return findings, result.other_trainings


def _joined(parts: Sequence[RunFindings]) -> RunFindings:
    return RunFindings(
        sum(part.steps for part in parts),
        max(part.last_step for part in parts),
        sum(part.seconds for part in parts),
        sum(part.trained_steps for part in parts),
        tuple(each for part in parts for each in part.notifications),
        tuple(each for part in parts for each in part.incidents),
        tuple(dict.fromkeys(each for part in parts for each in part.notes)),
    )


@dataclass
class _Observer:
    """Collects from the results of a replay what `RunFindings` holds."""

    seconds: float = 0.0
    trained_steps: int = 0
    last_step: int = 0
    notifications: list[SentNotification] = field(default_factory=list)
    _last: Record | None = None

    def update(self, result: Result) -> None:
        self.notifications += [
            _sent_notification(each) for each in result.case_notifications if _is_sent(each)
        ]
        record, last = result.record, self._last
        if record.rank != WHOLE_RUN:
            return
        if record.event in (START, TRAINING):
            self._last = None
        elif record.event is STEP:
            self.last_step = max(self.last_step, record.step)
            if last is not None and record.step >= last.step:
                self.trained_steps += record.step - last.step
                if last.time > YEAR_2001:
                    self.seconds += max(0.0, record.time - last.time)
            self._last = record


def _is_sent(notification: Notification) -> bool:
    reason = notification.reason
    is_message = reason is NotificationReason.OPENED or reason.is_new_message
    return is_message and notification.incident.severity is not Severity.INFO


def _sent_notification(notification: Notification) -> SentNotification:
    return SentNotification(
        notification.step,
        notification.reason.value,
        notification.incident.severity.value,
        notification.incident.key.detector,
        notification.diagnosis.cause if notification.diagnosis is not None else "",
    )


def _found_incident(replayed: ReplayedIncident) -> FoundIncident:
    incident = replayed.incident
    return FoundIncident(
        incident.key.detector,
        None if incident.key.rank == WHOLE_RUN else incident.key.rank,
        incident.severity.value,
        incident.onset_step,
        incident.opened_step,
        incident.resolved_step,
    )
