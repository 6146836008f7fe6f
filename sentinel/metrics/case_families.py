"""Prometheus families of the unresolved cases of a run.

The values of a case are series of their own with the labels `run` and `case`. Its sentences, which
are those of notifications, are labels of one series each, so that the annotations of a rule can
print them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import replace
from typing import NamedTuple

from sentinel.metrics.alert_state import AlertState
from sentinel.metrics.family import Family, FamilyBuilder
from sentinel.metrics.label import sanitize_label
from sentinel.model.finding import Severity
from sentinel.model.message import Message, build_message
from sentinel.model.notification import Notification, NotificationReason

MAX_CASES = 16
"""Number of unresolved cases that are exported: the most severe, then the newest."""

NO_CAUSE = "none"
"""Label value of a case without a named cause."""

CAUSE_HOLD_SECONDS = 5.0
"""How long the alert of a warning without a cause is held back: a cause may still be named."""

MAX_TEXT_BYTES = 1000
"""Maximum size of one sentence in bytes of UTF-8; Mimir and Cortex reject more than 2,048."""

_INFO_LABELS = ("case", "cause", "severity", "detector", "rank", "title", "place")


class CaseAlert(NamedTuple):
    """Identity of the alert of a case: another identity is another notification.

    `case` is the name of the case without the run, `detector` that of its lead. `cause` is the one
    that was named when the alert started: a later one changes texts, and sends nothing again.
    """

    case: str
    severity: Severity
    cause: str
    detector: str

    @property
    def key(self) -> tuple[str, Severity]:
        """A case has one alert for each severity that it reaches."""
        return self.case, self.severity


class ExportedCase(NamedTuple):
    """An unresolved case: its name without the run, its last notification and its alert.

    `detectors` are those of its open incidents.
    """

    name: str
    notification: Notification
    alert: CaseAlert
    detectors: tuple[str, ...]
    is_firing: bool


def exported_cases(alerts: AlertState, now: float) -> list[ExportedCase]:
    """The unresolved cases that are exported at `now`, with the severities that the tier allows.

    A case whose incidents are clear is resolved after their cooldown: an alert that follows every
    flap would be sent each time.
    """
    by_severity = sorted(
        alerts.cases.values(),
        key=lambda each: (each.incident.severity.order, -each.incident.opened_time),
    )
    return [_exported_case(alerts, each, now) for each in by_severity[:MAX_CASES]]


def case_families(
    build: FamilyBuilder,
    cases: Iterable[ExportedCase],
    ended_alerts: Iterable[CaseAlert],
    time_of_step: Callable[[int], float | None],
) -> Iterator[Family]:
    """The families of `cases`; `ended_alerts` were exported before and do not fire any more.

    `time_of_step` returns when a step was, in seconds since the epoch, or None.
    """
    cases = list(cases)
    messages = {case.name: build_message(case.notification, None) for case in cases}
    yield _firing_family(build, cases, ended_alerts)
    yield _info_family(build, cases, messages)
    yield _text_family(build, cases, messages)
    yield build.gauge(
        "sentinel_case_incident",
        "1 for each detector with an open incident of the case.",
        {(case.name, detector): 1.0 for case in cases for detector in case.detectors},
        "case",
        "detector",
    )
    yield build.gauge(
        "sentinel_case_onset_step",
        "Step at which the problem of the case began.",
        {case.name: case.notification.onset_step for case in cases},
        "case",
    )
    good_steps = {case.name: case.notification.last_good_step for case in cases}
    yield build.gauge(
        "sentinel_case_last_good_step",
        "Step of the last checkpoint before the onset of the case, if there is one.",
        {name: step for name, step in good_steps.items() if step is not None},
        "case",
    )
    yield build.gauge(
        "sentinel_case_opened_timestamp_seconds",
        "Time at which the case was opened.",
        {case.name: case.notification.incident.opened_time for case in cases},
        "case",
    )
    yield build.gauge(
        "sentinel_case_time_to_detect_seconds",
        "Time from the onset of the case to its first alert. Not known of an onset before the "
        "start of the agent.",
        {
            case.name: delay
            for case in cases
            if (delay := _time_to_detect(case, time_of_step)) is not None
        },
        "case",
    )
    yield build.gauge(
        "sentinel_case_confidence",
        "Confidence in the named cause of the case, from 0 to 1.",
        {
            case.name: case.notification.diagnosis.confidence
            for case in cases
            if case.notification.diagnosis is not None
        },
        "case",
    )


def _exported_case(alerts: AlertState, notification: Notification, now: float) -> ExportedCase:
    lead, suppression = notification.incident, alerts.suppression
    severity = suppression.notified_severity(lead.severity)
    # As it opened, so that its texts do not change with the reason of its last notification.
    shown = replace(
        notification,
        reason=NotificationReason.OPENED,
        incident=replace(lead, severity=severity),
    )
    name = sanitize_label(lead.name.removeprefix(f"{lead.key.run}/"))
    detectors = {
        each.key.detector for each in notification.incidents if each.name in alerts.open_incidents
    }
    is_silenced = all(
        suppression.is_suppressed(each.key.detector) for each in notification.incidents
    )
    is_held = (
        lead.severity is Severity.WARNING
        and notification.diagnosis is None
        and 0 <= now - lead.opened_time < CAUSE_HOLD_SECONDS
    )
    return ExportedCase(
        name,
        shown,
        CaseAlert(name, severity, _cause(notification), lead.key.detector),
        tuple(sorted(detectors)),
        not is_silenced and not is_held,
    )


def _time_to_detect(
    case: ExportedCase, time_of_step: Callable[[int], float | None]
) -> float | None:
    onset_time = time_of_step(case.notification.onset_step)
    first_alert = min(each.opened_time for each in case.notification.incidents)
    return None if onset_time is None else max(0.0, first_alert - onset_time)


def _firing_family(
    build: FamilyBuilder, cases: Iterable[ExportedCase], ended: Iterable[CaseAlert]
) -> Family:
    values = dict.fromkeys(ended, 0.0) | {case.alert: float(case.is_firing) for case in cases}
    return build.gauge(
        "sentinel_case_firing",
        "1 while the case fires and is not silenced, 0 after that. The cause is the one that was "
        "named when the alert started.",
        {
            (alert.case, alert.cause, alert.severity.value, alert.detector): value
            for alert, value in values.items()
        },
        "case",
        "cause",
        "severity",
        "detector",
    )


def _info_family(
    build: FamilyBuilder, cases: Iterable[ExportedCase], messages: Mapping[str, Message]
) -> Family:
    rows = []
    for case in cases:
        notification, message = case.notification, messages[case.name]
        lead = notification.incident
        rank = lead.finding.rank if lead.key.rank < 0 else lead.key.rank
        row = (
            case.name,
            _cause(notification),
            lead.severity.value,
            lead.key.detector,
            "" if rank is None else str(rank),
            sanitize_label(message.title, MAX_TEXT_BYTES),
            sanitize_label(message.place, MAX_TEXT_BYTES),
        )
        rows.append(row)
    return build.info("sentinel_case", "What an open case is about.", rows, *_INFO_LABELS)


def _text_family(
    build: FamilyBuilder, cases: Iterable[ExportedCase], messages: Mapping[str, Message]
) -> Family:
    written = {}
    for case in cases:
        notification, message = case.notification, messages[case.name]
        over = build_message(replace(notification, reason=NotificationReason.RESOLVED), None)
        parts = {
            "title": (message.subject,),
            "name": (over.subject,),
            "place": (message.place,),
            "cause": (_cause(notification),),
            "since": (message.since,),
            "fact": message.facts,
            "remedy": (message.remedy,),
            "checkpoint": (message.checkpoint,),
            "also": message.also,
            # The alert has annotations of its own for the others.
            "link": tuple(
                f"{link.label}: {link.url}" for link in message.links if link.label != "Runbook"
            ),
            "runbook": tuple(link.url for link in message.links if link.label == "Runbook"),
            "dashboard": tuple(link.url for link in message.links if link.label == "Dashboard"),
        }
        for part, texts in parts.items():
            for line, text in enumerate(filter(None, texts), start=1):
                label = sanitize_label(text, MAX_TEXT_BYTES)
                written[case.name, part, str(line), label] = notification.time
    return build.gauge(
        "sentinel_case_text_timestamp_seconds",
        "Time at which this sentence of the case was written: its title, name, place, cause, "
        "onset (since), facts, remedy, checkpoint, other incidents (also), "
        "links, and the addresses of runbook and dashboard.",
        written,
        "case",
        "part",
        "line",
        "text",
    )


def _cause(notification: Notification) -> str:
    diagnosis = notification.diagnosis
    return NO_CAUSE if diagnosis is None else sanitize_label(diagnosis.cause)
