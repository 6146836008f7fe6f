"""The JSON object that the webhook sends and that a command reads on standard input.

It is the body of a webhook of Alertmanager, version 4. The labels are those of the first incident
of the case, so that the resolved alert matches the firing one. The object `sentinel` beside the
alerts holds the parts of the message, that incident, the diagnosis and the other incidents.
"""

from __future__ import annotations

import json
import time
from dataclasses import asdict, replace
from enum import Enum
from hashlib import sha256
from typing import Any

from sentinel.model.clean_text import clean
from sentinel.model.incident import Incident
from sentinel.model.json_safe import json_safe
from sentinel.model.message import DRILL_LABEL, Message, build_message
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN
from sentinel.model.rfc3339 import format_rfc3339

_NO_END_TIME = "0001-01-01T00:00:00Z"
"""The end of a firing alert, as Alertmanager writes it."""

_MAX_LABEL_CHARS = 300
_MAX_TEXT_CHARS = 1000
_MAX_EVIDENCE = 16
_MAX_BODY_BYTES = 60_000
_TRUNCATION_LIMITS = ((_MAX_TEXT_CHARS, 64), (250, 32), (60, 20))
"""Most characters of a text and items of a list; the next pair if the body is too large."""


def alertmanager_body(notification: Notification, idempotency_key: str) -> bytes:
    """The object as UTF-8, at most 60,000 bytes: long texts and lists are cut."""
    for max_chars, max_items in _TRUNCATION_LIMITS:
        message = _message(notification, idempotency_key, max_chars, max_items)
        body = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
        if len(body) <= _MAX_BODY_BYTES:
            break
    return body


def _message(
    notification: Notification, idempotency_key: str, max_chars: int, max_items: int
) -> dict[str, Any]:
    incident = notification.incident
    status = "resolved" if notification.reason is NotificationReason.RESOLVED else "firing"
    # Receivers match by labels, so these have the same limit in every body.
    labels = {name: clean(text, _MAX_LABEL_CHARS) for name, text in _labels(incident).items()}
    annotations = _to_bounded_json(_annotations(notification), max_chars, max_items)
    return {
        "version": "4",
        "groupKey": clean(incident.name, _MAX_LABEL_CHARS),
        "truncatedAlerts": 0,
        "status": status,
        "receiver": "sentinel",
        "groupLabels": {name: labels[name] for name in ("run", "alertname")},
        "commonLabels": labels,
        "commonAnnotations": annotations,
        "externalURL": "",
        "alerts": [
            {
                "status": status,
                "labels": labels,
                "annotations": annotations,
                "startsAt": format_rfc3339(incident.opened_time) or _NO_END_TIME,
                "endsAt": _end_time(incident),
                "generatorURL": "",
                "fingerprint": sha256(incident.name.encode("utf-8", "replace")).hexdigest()[:16],
            }
        ],
        "sentinel": _to_bounded_json(
            _sentinel_object(notification, idempotency_key), max_chars, max_items
        ),
    }


def _sentinel_object(notification: Notification, idempotency_key: str) -> dict[str, Any]:
    others = [
        {
            "incident_name": each.name,
            "detector": each.key.detector,
            "severity": each.severity,
            "state": each.state,
            "onset_step": each.onset_step,
            "opened_step": each.opened_step,
            "summary": each.finding.summary,
        }
        for each in notification.others
    ]
    message = build_message(notification, time.time())
    fields: dict[str, Any] = {
        "idempotency_key": idempotency_key,
        "notification": notification.name,
        **_words(message),
        "incident_name": notification.incident.name,
        **asdict(replace(notification, others=())),
        "others": others,
        "notes": message.notes,
    }
    diagnosis = notification.diagnosis
    if diagnosis is not None:
        fields["diagnosis"]["confidence_text"] = diagnosis.confidence_text
        fields["diagnosis"]["evidence"] = [each.to_dict() for each in diagnosis.evidence]
        del fields["diagnosis"]["onset_incident"]
    return fields


def _words(message: Message) -> dict[str, Any]:
    """The parts of the message as text."""
    return {
        "headline": message.headline,
        "since": message.since,
        "facts": message.facts,
        "remedy": message.remedy,
        "checkpoint": message.checkpoint,
        "also": message.also,
        "links": {link.label: link.url for link in message.links},
    }


def _labels(incident: Incident) -> dict[str, str]:
    labels = {
        "alertname": incident.key.detector,
        "run": incident.key.run,
        "detector": incident.key.detector,
        "severity": incident.severity.value,
        "signal": incident.signal,
    }
    if incident.key.rank != WHOLE_RUN:
        labels["rank"] = str(incident.key.rank)
    return labels


def _annotations(notification: Notification) -> dict[str, str]:
    summary = clean(notification.incident.finding.summary, _MAX_TEXT_CHARS)
    description = clean(notification.remedy, _MAX_TEXT_CHARS)
    diagnosis = notification.diagnosis
    drill = f"{DRILL_LABEL}: " if notification.context.is_drill else ""
    if diagnosis is None:
        return {"summary": f"{drill}{summary}", "description": description}
    evidence = diagnosis.evidence[:_MAX_EVIDENCE]
    subject = clean(notification.subject, _MAX_TEXT_CHARS)
    return {
        "summary": f"{drill}{subject} ({diagnosis.confidence_text}): {summary}",
        "description": description,
        "cause": clean(diagnosis.cause, _MAX_TEXT_CHARS),
        "confidence": f"{diagnosis.confidence:.2f}",
        "evidence": "\n".join(clean(each.text_with_step, _MAX_TEXT_CHARS) for each in evidence),
    }


def _to_bounded_json(value: Any, max_chars: int, max_items: int) -> Any:
    """`value` as strict JSON whose texts and lists are limited in size."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        pairs = list(value.items())[:max_items]
        return {
            str(name)[:max_chars]: _to_bounded_json(item, max_chars, max_items)
            for name, item in pairs
        }
    if isinstance(value, (list, tuple)):
        return [_to_bounded_json(item, max_chars, max_items) for item in value[:max_items]]
    return value[:max_chars] if isinstance(value, str) else json_safe(value)


def _end_time(incident: Incident) -> str:
    end = incident.resolved_time
    return _NO_END_TIME if end is None else format_rfc3339(end) or _NO_END_TIME
