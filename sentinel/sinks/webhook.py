"""Webhook: one page as JSON, in the shape that Alertmanager sends, signed as Standard Webhooks.

What already reads Alertmanager's webhooks (version 4) reads these. The labels are those of the
incident that came first, so that what resolves matches what fired; the object `sentinel` beside
the alert holds that incident whole, what is behind it, and the others that are told of with it.
With a `secret`, the signature is the base64 of
HMAC-SHA256(key, "{webhook-id}.{webhook-timestamp}.{body}"), and `webhook-id` is the same on every
try, so that a receiver can drop repeats.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from dataclasses import asdict, replace
from datetime import UTC, datetime
from enum import Enum
from math import isfinite
from typing import Any

from pydantic import ConfigDict, SecretStr, field_validator
from pydantic.dataclasses import dataclass

from sentinel.config.url_policy import url_refusal
from sentinel.model.incident import Incident, Page, Reason
from sentinel.model.record import WHOLE_RUN
from sentinel.model.request import Post

_NEVER = "0001-01-01T00:00:00Z"
"""What Alertmanager writes for the end of an alert that still fires."""

_PREFIX = "whsec_"
_LABEL = 1000
_MOST_BYTES = 60_000
_ROOMS = ((1000, 64), (250, 32), (60, 20))
"""Characters of a text and entries of a table at most; the next where a message grows too large."""


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True))
class Webhook:
    """`url` takes the POST.

    `secret` signs it, and is `whsec_` and base64, or any text. `authorization` is sent as the
    header of that name. `allow_http` permits an unencrypted `url` on another machine.
    """

    url: SecretStr
    secret: SecretStr | None = None
    authorization: SecretStr | None = None
    allow_http: bool = False

    def __post_init__(self) -> None:
        refusal = url_refusal(self.url.get_secret_value(), allow_http=self.allow_http)
        if refusal:
            raise ValueError(f"`url` {refusal}; `allow_http` permits http://")

    @field_validator("secret")
    @classmethod
    def _check_secret(cls, secret: SecretStr | None) -> SecretStr | None:
        if secret is not None:
            _key(secret)
        return secret

    @field_validator("authorization")
    @classmethod
    def _check_header(cls, header: SecretStr | None) -> SecretStr | None:
        if header is not None and not header.get_secret_value().isprintable():
            raise ValueError("must be one line of printable text")
        return header

    def word(self, page: Page, identity: str) -> Post:
        """The request as it is at any moment; `stamp` adds what depends on when it is sent."""
        headers = {
            "Content-Type": "application/json",
            "Idempotency-Key": identity,
            "webhook-id": identity,
        }
        if self.authorization:
            headers["Authorization"] = self.authorization.get_secret_value()
        return Post(self.url.get_secret_value(), _body(page, identity), headers)

    def stamp(self, post: Post, now: float) -> Post:
        """The request dated `now` (seconds since the epoch) and signed."""
        headers = {**post.headers, "webhook-timestamp": str(int(now))}
        if self.secret:
            signed = f"{headers['webhook-id']}.{int(now)}.".encode() + post.body
            digest = hmac.new(_key(self.secret), signed, hashlib.sha256).digest()
            headers["webhook-signature"] = f"v1,{base64.b64encode(digest).decode()}"
        return replace(post, headers=headers)

    def accepted(self, status: int, body: str) -> bool:
        """Any 2xx: what a receiver says besides is its own affair."""
        del body
        return 200 <= status < 300


def _key(secret: SecretStr) -> bytes:
    text = secret.get_secret_value()
    if not text.startswith(_PREFIX):
        return text.encode()
    try:
        return base64.b64decode(text.removeprefix(_PREFIX), validate=True)
    except binascii.Error:
        raise ValueError(f"must be base64 after {_PREFIX}, or not begin with it") from None


def _body(page: Page, identity: str) -> bytes:
    for longest, most in _ROOMS:
        message = _message(page, identity, longest, most)
        body = json.dumps(message, ensure_ascii=False).encode("utf-8", "replace")
        if len(body) <= _MOST_BYTES:
            break
    return body


def _message(page: Page, identity: str, longest: int, most: int) -> dict[str, Any]:
    incident = page.incident
    status = "resolved" if page.reason is Reason.RESOLVED else "firing"
    # Receivers match by labels, so these do not depend on how much room there is.
    labels = {name: text[:_LABEL] for name, text in _labels(incident).items()}
    annotations = _plain(_annotations(page), longest, most)
    return {
        "version": "4",
        "groupKey": incident.name[:_LABEL],
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
                "startsAt": _moment(incident.opened_time),
                "endsAt": _moment(incident.resolved_time),
                "generatorURL": "",
                "fingerprint": hashlib.sha256(incident.name.encode("utf-8", "replace")).hexdigest()[
                    :16
                ],
            }
        ],
        "sentinel": _plain(_whole(page, identity), longest, most),
    }


def _whole(page: Page, identity: str) -> dict[str, Any]:
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
        for each in page.others
    ]
    whole: dict[str, Any] = {"identity": identity, "page": page.name}
    whole["incident_name"] = page.incident.name
    whole |= asdict(replace(page, others=())) | {"others": others}
    if page.diagnosis is not None:
        whole["diagnosis"]["belief"] = page.diagnosis.belief
    return whole


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


def _annotations(page: Page) -> dict[str, str]:
    summary = page.news.finding.summary
    if page.diagnosis is None:
        return {"summary": summary, "description": page.remedy}
    return {
        "summary": f"{page.subject} ({page.diagnosis.belief}): {summary}",
        "description": page.remedy,
        "cause": page.diagnosis.cause,
        "confidence": f"{page.diagnosis.confidence:.2f}",
        "evidence": "\n".join(clue.dated for clue in page.diagnosis.evidence),
    }


def _plain(value: Any, longest: int, most: int) -> Any:
    """`value` as strict JSON of bounded size: no text and no table in it is without end."""
    if isinstance(value, Enum):
        return value.value
    if isinstance(value, dict):
        pairs = list(value.items())[:most]
        return {str(name)[:longest]: _plain(inner, longest, most) for name, inner in pairs}
    if isinstance(value, (list, tuple)):
        return [_plain(inner, longest, most) for inner in value[:most]]
    if isinstance(value, float) and not isfinite(value):
        # JSON has no such numbers, and strict receivers refuse a text that has.
        return str(value)
    return value[:longest] if isinstance(value, str) else value


def _moment(seconds: float | None) -> str:
    if seconds is None:
        return _NEVER
    try:
        moment = datetime.fromtimestamp(seconds, tz=UTC)
    except (ValueError, OverflowError, OSError):
        return _NEVER
    return moment.isoformat(timespec="milliseconds").replace("+00:00", "Z")
