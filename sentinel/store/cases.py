"""The cases of the run, one row each in its newest state, and their JSON form."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Callable, Mapping
from dataclasses import asdict, replace
from typing import Any

from sentinel.model.clean_text import clean
from sentinel.model.diagnosis import Diagnosis
from sentinel.model.evidence_text import label_of
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident, Resolution
from sentinel.model.json_safe import JsonObject
from sentinel.model.message import MAX_FACTS, Message, build_message
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN
from sentinel.store import notification_codec
from sentinel.store.feedback import load_feedback
from sentinel.store.storage_monitor import DamagedContentError

_CASES_SQL = """
select case_history.state, case_history.body, notification, detector, resolved_time
from case_history left join incident on incident.name = case_history.name
order by case_history.opened_time desc, case_history.name
"""


def store_case(connection: sqlite3.Connection, notification: Notification) -> None:
    """Store the newest state of a case in the caller's transaction."""
    connection.execute(
        "insert or replace into case_history values(?, ?, ?, ?, ?, ?)",
        (
            notification.incident.name,
            "resolved" if notification.reason is NotificationReason.RESOLVED else "firing",
            None if notification.diagnosis is None else notification.diagnosis.cause,
            notification.incident.opened_time,
            json.dumps(case_to_dict(notification)),
            notification_codec.encode(notification),
        ),
    )


def cases_by_incident(connection: sqlite3.Connection) -> dict[str, JsonObject]:
    """The newest case of each incident, by the name of the incident."""
    rows = connection.execute("select body from case_history order by opened_time").fetchall()
    cases = [json.loads(body) for (body,) in rows]
    return {name: case for case in cases for name in case["incidents"]}


def all_cases(
    connection: sqlite3.Connection,
    now: float | None,
    report: Callable[[Exception], object],
) -> list[JsonObject]:
    """Every case as `case_with_message` gives it, with its `feedback` or None, the newest first.

    The text is shorter if the notification is not stored, by an earlier version, or cannot be read,
    which `report` gets.
    """
    found, feedback = [], load_feedback(connection)
    for state, body, text, detector, resolved_time in connection.execute(_CASES_SQL):
        stored = json.loads(body) | {"state": state, "resolved_time": resolved_time}
        case = None
        if text:
            try:
                case = case_with_message(notification_codec.decode(text), now)
            except notification_codec.UnreadableNotificationError as error:
                report(DamagedContentError(str(error)))
        case = case or _with_short_message(stored, detector or "")
        given = feedback.get(case["name"])
        found.append(case | {"feedback": None if given is None else given.to_dict()})
    return found


_ORDERS = {severity.value: severity.order for severity in Severity}


def urgency(case: Mapping[str, Any]) -> tuple[int, bool, int]:
    """Sort key of cases: the most severe first, then those that are open, then the earliest.

    A severity that is not known, from an agent of a later version, comes last.
    """
    is_over = case.get("resolved_step") is not None
    return _ORDERS.get(case["severity"], len(Severity)), is_over, case["onset_step"]


def _with_short_message(case: JsonObject, detector: str) -> JsonObject:
    """A stored case with as much of its text as `case_to_dict` has."""
    diagnosis = case["diagnosis"] or {"title": label_of(detector), "evidence": []}
    message = Message(
        status=case["state"],
        severity=Severity(case["severity"]),
        label=case["severity"].capitalize(),
        subject=clean(case["subject"]),
        place=clean(case["run"]),
        since=f"Since step {case['onset_step']}; found at step {case['opened_step']}.",
        title=clean(diagnosis["title"]),
        facts=tuple(clean(each["text"]) for each in diagnosis["evidence"][:MAX_FACTS]),
        remedy=clean(case["remedy"]),
    )
    is_resolved = case["state"] == "resolved"
    return case | {
        "resolved_time": case["resolved_time"] if is_resolved else None,
        "resolution": case.get("resolution"),
        "lasted_until": case.get("lasted_until"),
        "detector": detector,
        "ranks": [],
        "message": message_to_dict(message),
    }


def case_fields(case: JsonObject | None) -> JsonObject:
    """The JSON fields of an incident that refer to its case."""
    if case is None:
        return {"case": None, "diagnosis": None}
    return {"case": case["name"], "diagnosis": case["diagnosis"]}


def case_to_dict(notification: Notification) -> JsonObject:
    """A case as JSON; `incidents` are names, and the first is the name of the case.

    `lasted_until` is the end of the run, or of its training among several of the run, if the
    problem was there then, however it was closed. The end of a stage is none: training goes on.
    """
    lead = notification.incident
    is_resolved = notification.reason is NotificationReason.RESOLVED
    return {
        "name": lead.name,
        "run": lead.key.run,
        "subject": notification.subject,
        "severity": lead.severity.value,
        "onset_step": notification.onset_step,
        "opened_step": lead.opened_step,
        "opened_time": lead.opened_time,
        "resolved_step": lead.resolved_step if is_resolved else None,
        "resolution": _value(lead.resolution) if is_resolved else None,
        "lasted_until": _value(_training_end(lead)) if is_resolved else None,
        "remedy": notification.remedy,
        "last_good_step": notification.last_good_step,
        "incidents": [each.name for each in notification.incidents],
        "diagnosis": None
        if notification.diagnosis is None
        else diagnosis_to_dict(notification.diagnosis),
        "possible_causes": [asdict(each) for each in notification.possible_causes],
    }


def _training_end(incident: Incident) -> Resolution | None:
    end = incident.lasted_until
    return None if end is Resolution.STAGE_FINISHED else end


def _value(resolution: Resolution | None) -> str | None:
    return None if resolution is None else resolution.value


def case_with_message(notification: Notification, now: float | None) -> JsonObject:
    """A case as the page shows it: `case_to_dict`, its state and the text of its notification.

    Further keys: state (`firing` or `resolved`), resolved_time, detector (the first one), ranks
    (those that it names), and message, see `build_message`, which gets `now`; its subject names the
    step of which its values are.
    """
    is_resolved = notification.reason is NotificationReason.RESOLVED
    # As it opened, since "escalated" and "updated" describe a message and not the case; and who
    # reads it does not ask for the way to the page.
    context = replace(notification.context, open_command="")
    opened = replace(notification, reason=NotificationReason.OPENED, context=context)
    message = build_message(opened, now, is_dated=not is_resolved)
    ranks = {
        each.key.rank if each.key.rank != WHOLE_RUN else each.finding.rank
        for each in notification.incidents
    }
    return case_to_dict(notification) | {
        "state": "resolved" if is_resolved else "firing",
        "resolved_time": notification.incident.resolved_time if is_resolved else None,
        "detector": notification.incident.key.detector,
        "ranks": sorted(rank for rank in ranks if rank is not None),
        "message": message_to_dict(message),
    }


def message_to_dict(message: Message) -> JsonObject:
    """The parts of a message as plain data, and its headline."""
    return asdict(message) | {"severity": message.severity.value, "headline": message.headline}


def diagnosis_to_dict(diagnosis: Diagnosis) -> JsonObject:
    """A diagnosis as JSON; `confidence_text` is its confidence in words."""
    return {
        "cause": diagnosis.cause,
        "title": diagnosis.title,
        "confidence": diagnosis.confidence,
        "confidence_text": diagnosis.confidence_text,
        "severity": None if diagnosis.severity is None else diagnosis.severity.value,
        "evidence": [evidence.to_dict() for evidence in diagnosis.evidence],
        "remedy": diagnosis.remedy,
        "last_good_step": diagnosis.last_good_step,
    }
