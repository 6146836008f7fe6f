"""Webhook: one notification as JSON in the format of Alertmanager, signed per Standard Webhooks.

A receiver of Alertmanager's webhooks (version 4) reads it. The labels are those of the first
incident of the case, so that the resolved alert matches the firing one. The object `sentinel`
beside the alerts holds that incident, the diagnosis and the other incidents of the case. With a
`secret`, the signature is the base64 of
HMAC-SHA256(key, "{webhook-id}.{webhook-timestamp}.{body}"). `webhook-id` is the same on every try,
so that a receiver can drop repeats.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
import time
from dataclasses import asdict, replace
from datetime import UTC, datetime
from enum import Enum
from typing import Any, ClassVar

from pydantic import ConfigDict, SecretStr, field_validator
from pydantic.dataclasses import dataclass

from sentinel.config.url_policy import url_refusal
from sentinel.model.clean_text import clean
from sentinel.model.delivery import HttpRequest, Response
from sentinel.model.incident import Incident
from sentinel.model.json_safe import json_safe
from sentinel.model.message import Message, build_message
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN

_NO_END_TIME = "0001-01-01T00:00:00Z"
"""The end of a firing alert, as Alertmanager writes it."""

_SIGNING_KEY_PREFIX = "whsec_"
_MAX_LABEL_CHARS = 1000
_MAX_BODY_BYTES = 60_000
_TRUNCATION_LIMITS = ((1000, 64), (250, 32), (60, 20))
"""Most characters of a text and items of a list; the next pair if the body is too large."""


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class Webhook:
    """`url` receives the POST.

    `secret` signs it and is `whsec_` followed by base64, or any text. `authorization` is sent as
    the header of that name. `allow_http` permits an unencrypted `url` on another machine.
    """

    url: SecretStr
    secret: SecretStr | None = None
    authorization: SecretStr | None = None
    allow_http: bool = False

    can_update: ClassVar[bool] = False

    def __post_init__(self) -> None:
        refusal = url_refusal(self.url.get_secret_value(), allow_http=self.allow_http)
        if refusal:
            raise ValueError(f"`url` {refusal}; `allow_http` permits http://")

    @field_validator("secret")
    @classmethod
    def _check_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None:
            _signing_key(secret)
        return secret

    @field_validator("authorization")
    @classmethod
    def _check_authorization(cls, header: SecretStr | None) -> SecretStr | None:
        if header is not None and not header.get_secret_value().isprintable():
            raise ValueError("must be one line of printable text")
        return header

    def render(
        self, notification: Notification, delivery_id: str, receipt: str | None
    ) -> HttpRequest:
        """The request without what depends on the time, which `sign` adds."""
        del receipt
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": delivery_id,
            "webhook-id": delivery_id,
        }
        if self.authorization:
            headers["Authorization"] = self.authorization.get_secret_value()
        return HttpRequest(
            self.url.get_secret_value(),
            _body(notification, delivery_id),
            headers,
            allow_http=self.allow_http,
        )

    def sign(self, request: HttpRequest, sent_at: float) -> HttpRequest:
        """The request with timestamp and signature; `sent_at` in seconds since the epoch."""
        headers = {**request.headers, "webhook-timestamp": str(int(sent_at))}
        if self.secret:
            signed = f"{headers['webhook-id']}.{int(sent_at)}.".encode() + request.body
            digest = hmac.new(_signing_key(self.secret), signed, hashlib.sha256).digest()
            headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
        return replace(request, headers=headers)

    def is_accepted(self, response: Response) -> bool:
        """Any status 2xx; the body is ignored."""
        return 200 <= response.status < 300

    def receipt(self, response: Response) -> None:
        """None: receivers match by the labels."""
        del response


def _signing_key(secret: SecretStr) -> bytes:
    text = secret.get_secret_value()
    if not text.startswith(_SIGNING_KEY_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_SIGNING_KEY_PREFIX), validate=True)
    except binascii.Error:
        message = f"must be base64 after {_SIGNING_KEY_PREFIX}, or not begin with it"
        raise ValueError(message) from None


def _body(notification: Notification, idempotency_key: str) -> bytes:
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
    labels = {name: text[:_MAX_LABEL_CHARS] for name, text in _labels(incident).items()}
    annotations = _to_bounded_json(_annotations(notification), max_chars, max_items)
    return {
        "version": "4",
        "groupKey": incident.name[:_MAX_LABEL_CHARS],
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
                "startsAt": _format_rfc3339(incident.opened_time),
                "endsAt": _format_rfc3339(incident.resolved_time),
                "generatorURL": "",
                "fingerprint": hashlib.sha256(incident.name.encode("utf-8", "replace")).hexdigest()[
                    :16
                ],
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
    fields: dict[str, Any] = {
        "idempotency_key": idempotency_key,
        "notification": notification.name,
        **_words(build_message(notification, time.time())),
        "incident_name": notification.incident.name,
        **asdict(replace(notification, others=())),
        "others": others,
    }
    if notification.diagnosis is not None:
        fields["diagnosis"]["confidence_text"] = notification.diagnosis.confidence_text
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
    summary = clean(notification.incident.finding.summary)
    description = clean(notification.remedy)
    diagnosis = notification.diagnosis
    if diagnosis is None:
        return {"summary": summary, "description": description}
    return {
        "summary": f"{clean(notification.subject)} ({diagnosis.confidence_text}): {summary}",
        "description": description,
        "cause": diagnosis.cause,
        "confidence": f"{diagnosis.confidence:.2f}",
        "evidence": "\n".join(clean(each.text_with_step) for each in diagnosis.evidence),
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


def _format_rfc3339(seconds: float | None) -> str:
    if seconds is None:
        return _NO_END_TIME
    try:
        time = datetime.fromtimestamp(seconds, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return _NO_END_TIME
    return time.isoformat(timespec="milliseconds").replace("+00:00", "Z")
