"""PagerDuty: one notification as one event of the Events API v2.

`trigger` opens the alert of a case or changes it, `acknowledge` stops the escalation of a case that
was acknowledged, and `resolve` closes it; all name it by `dedup_key`, so that repeats change
nothing. A service that notifies by the severity of the alert
(dynamic notifications) raises the urgency of the incident with it.

Limits: 1,024 characters of the summary, 512 KB of the event. Responses: 202 if the event is queued,
400 for an event or key that is not valid, 429 and 5xx to be tried again.
Source: developer.pagerduty.com, "Send an alert event" and its OpenAPI schema of August 2026;
support.pagerduty.com, "Dynamic notifications"; read in November 2026.
"""

from __future__ import annotations

import json
import time
from typing import Any, ClassVar

from pydantic import ConfigDict, SecretStr, field_validator
from pydantic.dataclasses import dataclass

from sentinel.config.field_types import PermittedUrl
from sentinel.model.clean_text import clean, clean_url
from sentinel.model.delivery import HttpRequest, Response
from sentinel.model.message import Message, build_message
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.rfc3339 import format_rfc3339
from sentinel.sinks._case_id import case_id

_ROUTING_KEY_CHARS = 32
_MAX_SUMMARY_CHARS = 1024
_MAX_TEXT_CHARS = 1500
_MAX_NAME_CHARS = 250
_MAX_ITEMS = 8


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class Pagerduty:
    """`routing_key` is the integration key of a service: 32 characters.

    `url` is the address of the Events API; accounts in the European Union have another.
    """

    routing_key: SecretStr
    url: PermittedUrl = "https://events.pagerduty.com/v2/enqueue"

    can_update: ClassVar[bool] = True

    @field_validator("routing_key")
    @classmethod
    def _check_routing_key(cls, key: SecretStr) -> SecretStr:
        if len(key.get_secret_value()) != _ROUTING_KEY_CHARS:
            raise ValueError(f"must have {_ROUTING_KEY_CHARS} characters")
        return key

    def render(
        self, notification: Notification, delivery_id: str, receipt: str | None
    ) -> HttpRequest:
        """The event. Its `dedup_key` is that of the case, whatever `delivery_id` is."""
        del receipt
        message = build_message(notification, time.time())
        event = {
            "routing_key": self.routing_key.get_secret_value(),
            "dedup_key": case_id(notification),
            "event_action": "resolve",
        }
        if message.status == "firing":
            event |= _trigger(notification, message, delivery_id)
        if notification.is_acknowledged and notification.reason is NotificationReason.UPDATED:
            event["event_action"] = "acknowledge"
        body = json.dumps(event, ensure_ascii=False).encode()
        return HttpRequest(self.url, body, {"Content-Type": "application/json"})

    def is_accepted(self, response: Response) -> bool:
        """PagerDuty responds 202; the login page of a proxy has status 200."""
        return response.status == 202

    def explain(self, response: Response) -> str:
        """What to do about an event that is not valid, which is the key in practice."""
        if response.status != 400:
            return ""
        return "Check routing_key: it is the integration key of an Events API v2 integration."

    def receipt(self, response: Response) -> None:
        """None: an event names its alert by the key of the case."""
        del response


def _trigger(notification: Notification, message: Message, delivery_id: str) -> dict[str, Any]:
    incident, context = notification.incident, notification.context
    links = [(clean_url(link.url), link.label) for link in message.links[:_MAX_ITEMS]]
    return {
        "event_action": "trigger",
        "client": "sentinel",
        "payload": {
            "summary": clean(message.headline, _MAX_SUMMARY_CHARS),
            "severity": message.severity.value,
            "source": _name(context.host).strip() or _name(incident.key.run).strip() or "sentinel",
            "timestamp": format_rfc3339(incident.opened_time),
            "component": _name(incident.signal),
            "group": _name(incident.key.run),
            "class": _name(incident.key.detector),
            "custom_details": _details(message, delivery_id),
        },
        "links": [{"href": url, "text": _name(label)} for url, label in links if url],
    }


def _details(message: Message, delivery_id: str) -> dict[str, Any]:
    """What a person reads below the summary, in the order of the names."""
    details: dict[str, Any] = {
        "1 since": _text(message.since),
        "2 facts": [_text(fact) for fact in message.facts[:_MAX_ITEMS]],
        "3 what to do": _text(message.remedy),
        "4 last good checkpoint": _text(message.checkpoint),
        "5 also in this case": [_text(each) for each in message.also[:_MAX_ITEMS]],
        "6 notes": [_text(note) for note in message.notes[:_MAX_ITEMS]],
        "7 run": _text(message.run),
        "8 delivery": delivery_id[:8],
    }
    return {name: value for name, value in details.items() if value}


def _text(text: str) -> str:
    return clean(text, _MAX_TEXT_CHARS)


def _name(text: str) -> str:
    return clean(text, _MAX_NAME_CHARS)
