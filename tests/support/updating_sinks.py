"""A sink whose messages can be changed, as those of a chat; its receiver counts new messages."""

from __future__ import annotations

import json
from dataclasses import dataclass
from typing import ClassVar

from sentinel.model.delivery import HttpRequest, Rejection


@dataclass
class UpdatingSink:
    """Posts a message, and changes the message of `receipt`, which is the id of its delivery."""

    url: str

    can_update: ClassVar[bool] = True

    def render(self, notification, delivery_id, receipt):
        is_change = receipt and not notification.reason.is_new_message
        body = {
            "id": delivery_id,
            "changes": receipt if is_change else None,
            "reason": notification.reason.value,
            "severity": notification.incident.severity.value,
            "summary": notification.incident.finding.summary,
            "notes": notification.notes,
        }
        return HttpRequest(self.url, json.dumps(body).encode())

    def is_accepted(self, response):
        return response.status == 200

    def receipt(self, response):
        return response.body

    def rejection(self, response):
        return Rejection.UNKNOWN_RECEIPT if response.status == 404 else None


@dataclass
class RefreshedUpdatingSink(UpdatingSink):
    """The receiver ends alerts that are not sent again."""

    refresh_seconds: ClassVar[float] = 60.0


def new_messages(receiver):
    """Reason and severity of the messages that alert someone."""
    bodies = [request.json for request in receiver.accepted]
    return [(each["reason"], each["severity"]) for each in bodies if each["changes"] is None]
