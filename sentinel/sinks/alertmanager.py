"""Alertmanager: one notification as alerts of its API v2, for routing, grouping and silences there.

Alertmanager resolves an alert at its `endsAt` and forgets all alerts when it restarts. So `endsAt`
of a firing alert is an hour ahead, and the alert is sent again every `refresh_seconds` until it is
resolved. The members of a cluster do not exchange alerts: each needs a sink of its own, and the
cluster sends one notification.

The labels identify an alert. They stay the same from the opening to the resolution, except the
severity: when it rises, the alert of the lower severity ends and one of the higher severity begins.
Everything that changes is an annotation.
Source: prometheus/alertmanager, docs/alerts_api.md and api/v2/openapi.yaml, of August 2026.
"""

from __future__ import annotations

import json
import time
from dataclasses import replace
from typing import Any, ClassVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from sentinel.config.field_types import HeaderValue
from sentinel.config.url_policy import check_url
from sentinel.model.clean_text import clean, clean_url
from sentinel.model.delivery import HttpRequest, Response
from sentinel.model.finding import Severity
from sentinel.model.message import build_message
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN
from sentinel.model.rfc3339 import format_rfc3339

ALERT_NAME = "SentinelCase"
LIFETIME_SECONDS = 3600.0
"""Seconds after which Alertmanager resolves an alert that is no longer sent."""

_PATH = "/api/v2/alerts"
_MAX_LABEL_CHARS = 200
_MAX_LINE_CHARS = 500
_MAX_LINES = 10
_SEVERITIES = (Severity.INFO, Severity.WARNING, Severity.CRITICAL)


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class Alertmanager:
    """`url` is the address of one Alertmanager, such as `http://127.0.0.1:9093`.

    `authorization` is sent as the header of that name. `allow_http` permits an unencrypted `url` on
    another machine.
    """

    url: str
    authorization: HeaderValue | None = None
    allow_http: bool = False

    can_update: ClassVar[bool] = True
    refresh_seconds: ClassVar[float] = 60.0
    """Interval at which the newest delivery of a firing case is rendered and sent again."""

    def __post_init__(self) -> None:
        check_url("url", self.url, allow_http=self.allow_http)

    def render(
        self, notification: Notification, delivery_id: str, receipt: str | None
    ) -> HttpRequest:
        """The alerts without what depends on the time, which `sign` adds."""
        del receipt
        alert: dict[str, Any] = {
            "labels": _labels(notification, notification.incident.severity),
            "annotations": _annotations(notification, delivery_id),
            "startsAt": format_rfc3339(notification.incident.opened_time),
        }
        alerts = [alert | {"firing": notification.reason is not NotificationReason.RESOLVED}]
        if notification.reason is NotificationReason.ESCALATED:
            alerts += [
                {"labels": _labels(notification, severity), "startsAt": alert["startsAt"]}
                | {"firing": False}
                for severity in _SEVERITIES[: _SEVERITIES.index(notification.incident.severity)]
            ]
        headers = {"Content-Type": "application/json"}
        if self.authorization:
            headers["Authorization"] = self.authorization.get_secret_value()
        url = self.url.rstrip("/").removesuffix(_PATH) + _PATH
        body = json.dumps(alerts, ensure_ascii=False).encode()
        return HttpRequest(url, body, headers, allow_http=self.allow_http)

    def sign(self, request: HttpRequest, sent_at: float) -> HttpRequest:
        """The request with the end of each alert; `sent_at` in seconds since the epoch."""
        now, later = format_rfc3339(sent_at), format_rfc3339(sent_at + LIFETIME_SECONDS)
        alerts: list[dict[str, Any]] = json.loads(request.body)
        for alert in alerts:
            alert["endsAt"] = later if alert.pop("firing") else now
            # An alert that ends before it begins is refused.
            alert["startsAt"] = min(alert["startsAt"] or now, now)
        return replace(request, body=json.dumps(alerts, ensure_ascii=False).encode())

    def is_accepted(self, response: Response) -> bool:
        """Alertmanager responds 200 without a body; the login page of a proxy has one."""
        return response.status == 200 and not response.body.strip()

    def receipt(self, response: Response) -> None:
        """None: the labels identify the alert."""
        del response


def _labels(notification: Notification, severity: Severity) -> dict[str, str]:
    key = notification.incident.key
    labels = {
        "alertname": ALERT_NAME,
        "run": clean(key.run, _MAX_LABEL_CHARS),
        "detector": clean(key.detector, _MAX_LABEL_CHARS),
        "severity": severity.value,
    }
    return labels if key.rank == WHOLE_RUN else labels | {"rank": str(key.rank)}


def _annotations(notification: Notification, delivery_id: str) -> dict[str, str]:
    message, diagnosis = build_message(notification, time.time()), notification.diagnosis
    last_good_step = notification.last_good_step
    annotations = {
        "summary": message.headline,
        "description": "\n".join(filter(None, [message.since, *message.facts])),
        "remedy": message.remedy,
        "cause": "" if diagnosis is None else diagnosis.title,
        "confidence": "" if diagnosis is None else diagnosis.confidence_text,
        "onset_step": str(notification.onset_step),
        "last_good_step": "" if last_good_step is None else str(last_good_step),
        "checkpoint": message.checkpoint,
        "also": "\n".join(message.also),
        "notes": "\n".join(message.notes),
        "run_description": message.run,
        "page_url": clean_url(notification.context.page_url),
        "dashboard_url": clean_url(notification.context.dashboard_url),
        "runbook_url": clean_url(notification.context.runbook_url),
        "delivery": delivery_id[:8],
    }
    return {name: _cut(text) for name, text in annotations.items() if text}


def _cut(text: str) -> str:
    return "\n".join(clean(line, _MAX_LINE_CHARS) for line in text.split("\n")[:_MAX_LINES])
