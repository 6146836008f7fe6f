"""Slack: one notification as one message of an incoming webhook.

A message of an incoming webhook cannot be changed, since the response does not identify it. Slack
responds 200 and `ok`, 429 with `Retry-After` above about one message a second, and else a status
4xx with the reason as text: `no_service` for a revoked webhook, `channel_is_archived`,
`invalid_blocks`, `msg_blocks_too_long`.
Source: docs.slack.dev, "Sending messages using incoming webhooks", read in November 2026.
"""

from __future__ import annotations

import json
import time
from typing import ClassVar

from pydantic import ConfigDict
from pydantic.dataclasses import dataclass

from sentinel.config.field_types import SecretUrl
from sentinel.model.delivery import HttpRequest, Response
from sentinel.model.message import build_message
from sentinel.model.notification import Notification
from sentinel.sinks._slack_blocks import blocks, headline

_REMEDIES = {
    "no_service": "The webhook was revoked: create a new one in the settings of the app.",
    "no_team": "The URL is incomplete: copy it again from the settings of the app.",
    "invalid_token": "The URL is incomplete: copy it again from the settings of the app.",
    "channel_is_archived": "The channel is archived: create a webhook for another one.",
    "channel_not_found": "The channel was deleted: create a webhook for another one.",
    "action_prohibited": "An administrator of the workspace forbids messages of webhooks.",
    "posting_to_general_channel_denied": "Only administrators may post here: use another channel.",
}
"""What to do, by the text of a refusal."""


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class Slack:
    """`url` is the URL of the incoming webhook."""

    url: SecretUrl

    can_update: ClassVar[bool] = False

    def render(
        self, notification: Notification, delivery_id: str, receipt: str | None
    ) -> HttpRequest:
        """The message. It shows the start of `delivery_id`, since Slack drops no repeats."""
        del receipt
        message = build_message(notification, time.time())
        content = {
            "text": headline(message),
            "blocks": blocks(message, delivery_id),
            "mrkdwn": False,
            "unfurl_links": False,
            "unfurl_media": False,
            "link_names": 0,
        }
        return HttpRequest(
            self.url.get_secret_value(),
            json.dumps(content, ensure_ascii=False).encode(),
            {"Content-Type": "application/json"},
        )

    def is_accepted(self, response: Response) -> bool:
        """Slack responds 200 and `ok`; the login page of a proxy has status 200 as well."""
        return response.status == 200 and response.body.strip() == "ok"

    def receipt(self, response: Response) -> None:
        """None: the response does not identify the message."""
        del response

    def explain(self, response: Response) -> str:
        """What to do, by the text that Slack responds with."""
        return _REMEDIES.get(response.body.strip(), "")
