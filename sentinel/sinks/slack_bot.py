"""Slack bot: one message per case, which is kept up to date, with its history in a thread.

`chat.postMessage` sends the first message. `chat.update` changes it when the case changes or is
over, and a reply in its thread records the change. An edited message alerts no one, so a case whose
severity rises, or whose cause is another one than was sent, is posted again: as a reply that is
shown in the channel too.

Every response has status 200 and a JSON object whose `ok` is false with the reason in `error`,
except 429 with `Retry-After` (`ratelimited`) and 5xx. The limit is about one message a second and
channel. The token begins with `xoxb-` and needs the scope `chat:write`; the bot must be a member of
the channel, or have `chat:write.public`.

A report is uploaded in three steps, since `files.upload` was shut down in November 2025:
`files.getUploadURLExternal` returns an address and the id of the file, the address takes its
content, and `files.completeUploadExternal` shows it in the thread. That needs the scope
`files:write`.
Source: docs.slack.dev, methods `chat.postMessage`, `chat.update`, `files.getUploadURLExternal` and
`files.completeUploadExternal`, read in November 2026.
"""

from __future__ import annotations

import json
import time
from typing import Annotated, Any, ClassVar
from urllib.parse import urlencode

from pydantic import ConfigDict, Field, SecretStr, field_validator
from pydantic.dataclasses import dataclass

from sentinel.config.field_types import require_permitted_url
from sentinel.model.delivery import (
    AttachmentSteps,
    HttpRequest,
    Rejection,
    ReportFile,
    Response,
)
from sentinel.model.json_safe import parse_object
from sentinel.model.message import Message, build_message
from sentinel.model.notification import Notification, NotificationReason
from sentinel.sinks._case_id import case_id
from sentinel.sinks._slack_blocks import blocks, headline, history_lines, markdown
from sentinel.transport.paths import RunIdError, validate_run_id

ACKNOWLEDGE_ACTION = "sentinel_acknowledge"
SILENCE_ACTION = "sentinel_silence"
USEFUL_ACTION, FALSE_ACTION = "sentinel_useful", "sentinel_false"
"""Identifiers of the buttons; their value is the run and the identifier of the case."""

_UNKNOWN_MESSAGE_ERRORS = frozenset(
    {"message_not_found", "cant_update_message", "edit_window_closed", "thread_not_found"}
)
_TOO_LONG_ERRORS = frozenset({"msg_blocks_too_long", "msg_too_long", "invalid_blocks"})
_TEMPORARY_ERRORS = frozenset(
    {
        *("ratelimited", "rate_limited", "message_limit_exceeded", "service_unavailable"),
        *("internal_error", "fatal_error", "request_timeout", "team_added_to_org"),
    }
)

_REMEDIES = {
    "invalid_auth": "The token is not valid: copy the bot token (xoxb-) of the app.",
    "not_authed": "The token is not valid: copy the bot token (xoxb-) of the app.",
    "token_revoked": "The token was revoked: install the app again and copy its bot token.",
    "token_expired": "The token is expired: install the app again and copy its bot token.",
    "account_inactive": "The app was removed from the workspace: install it again.",
    "not_allowed_token_type": "This is no bot token: copy the one that begins with xoxb-.",
    "missing_scope": "Add the bot scope chat:write to the app (and files:write, if reports are "
    "attached), and install the app again.",
    "not_in_channel": "Invite the bot to the channel: /invite @name-of-the-app.",
    "channel_not_found": "Check the name of the channel; to a private one, invite the bot.",
    "is_archived": "The channel is archived: choose another one.",
    "restricted_action": "An administrator of the workspace restricts who may post here.",
}
"""What to do, by the error of a response."""


@dataclass(config=ConfigDict(extra="forbid", hide_input_in_errors=True, str_strip_whitespace=True))
class SlackBot:
    """`token` is the bot token (`xoxb-`), `channel` the name or the id of the channel.

    With `app_token` (`xapp-`), messages have the buttons Acknowledge and Silence. With
    `attach_report`, the thread of a case gets the report of the run once the case is over.
    `api_url` is the address of the Web API, which differs for GovSlack.
    """

    token: SecretStr
    channel: Annotated[str, Field(min_length=1)]
    app_token: SecretStr | None = None
    attach_report: bool = False
    api_url: str = "https://slack.com/api/"

    can_update: ClassVar[bool] = True

    @field_validator("token", "app_token")
    @classmethod
    def _check_token(cls, token: SecretStr | None) -> SecretStr | None:
        if token is not None and not _is_header_value(token.get_secret_value()):
            raise ValueError("must be one word of ASCII characters")
        return token

    @field_validator("api_url")
    @classmethod
    def _check_api_url(cls, url: str) -> str:
        return require_permitted_url(url).rstrip("/") + "/"

    def render(
        self, notification: Notification, delivery_id: str, receipt: str | None
    ) -> HttpRequest:
        """A new message, or with `receipt` the change of that message and a reply to it."""
        message = build_message(notification, time.time())
        channel, _, first = (receipt or "").partition("/")
        content = {
            "text": headline(message),
            "blocks": [*blocks(message, delivery_id), *self._buttons(notification)],
            "unfurl_links": False,
            "unfurl_media": False,
            "mrkdwn": False,
        }
        if not first:
            return self.api_request("chat.postMessage", {"channel": self.channel, **content})
        update = {"channel": channel, "ts": first, **content}
        if notification.reason.is_new_message:
            post = {"channel": channel, "thread_ts": first, "reply_broadcast": True, **content}
            return self.api_request(
                "chat.postMessage", post, self.api_request("chat.update", update)
            )
        reply = {"channel": channel, "thread_ts": first, **_history_entry(message)}
        return self.api_request("chat.update", update, self.api_request("chat.postMessage", reply))

    def is_accepted(self, response: Response) -> bool:
        """Slack responds 200 and an object whose `ok` is true."""
        return response.status == 200 and parse_object(response.body).get("ok") is True

    def receipt(self, response: Response) -> str | None:
        """Channel and time stamp of the first message of the thread."""
        answer = parse_object(response.body)
        channel, stamp = answer.get("channel"), answer.get("ts")
        posted = answer.get("message")
        if isinstance(posted, dict):
            stamp = posted.get("thread_ts") or stamp
        return f"{channel}/{stamp}" if channel and stamp else None

    def rejection(self, response: Response) -> Rejection | None:
        """Why a request was not accepted: the reason is in the body."""
        error = parse_object(response.body).get("error") if response.status == 200 else None
        if not isinstance(error, str):
            return Rejection.TEMPORARY if response.status == 200 else None
        if error in _UNKNOWN_MESSAGE_ERRORS:
            return Rejection.UNKNOWN_RECEIPT
        if error in _TOO_LONG_ERRORS:
            return Rejection.TOO_LONG
        return Rejection.TEMPORARY if error in _TEMPORARY_ERRORS else Rejection.PERMANENT

    def explain(self, response: Response) -> str:
        """What to do, by the error that Slack responds with."""
        error = str(parse_object(response.body).get("error", ""))
        is_code = error.isascii() and error.replace("_", "").isalnum() and len(error) < 60
        return _REMEDIES.get(error) or (f"The error of Slack is {error}." if is_code else "")

    def attach(
        self, notification: Notification, receipt: str | None, report: ReportFile
    ) -> AttachmentSteps:
        """The upload of the report, as a reply in the thread of the case."""
        del notification
        channel, _, first = (receipt or "").partition("/")
        if not first:
            return False
        wanted = {"filename": report.name, "length": len(report.content)}
        address = yield HttpRequest(
            f"{self.api_url}files.getUploadURLExternal",
            urlencode(wanted).encode(),
            {
                "Authorization": f"Bearer {self.token.get_secret_value()}",
                "Content-Type": "application/x-www-form-urlencoded",
            },
        )
        answer = parse_object(address.body)
        url, file_id = answer.get("upload_url"), answer.get("file_id")
        if not (self.is_accepted(address) and isinstance(url, str) and isinstance(file_id, str)):
            return False
        # The address is the permission: it gets no token.
        uploaded = yield HttpRequest(
            url, report.content, {"Content-Type": "application/octet-stream"}
        )
        if uploaded.error or uploaded.status != 200:
            return False
        shared = yield self.api_request(
            "files.completeUploadExternal",
            {
                "files": [{"id": file_id, "title": report.name}],
                "channel_id": channel,
                "thread_ts": first,
            },
        )
        return self.is_accepted(shared)

    def api_request(
        self, method: str, content: dict[str, Any], follow_up: HttpRequest | None = None
    ) -> HttpRequest:
        """The request of a method of the Web API."""
        return HttpRequest(
            f"{self.api_url}{method}",
            json.dumps(content, ensure_ascii=False).encode(),
            {
                "Authorization": f"Bearer {self.token.get_secret_value()}",
                "Content-Type": "application/json; charset=utf-8",
            },
            follow_up=follow_up,
        )

    def _buttons(self, notification: Notification) -> list[dict[str, Any]]:
        if self.app_token is None:
            return []
        try:
            value = f"{validate_run_id(notification.incident.key.run)}/{case_id(notification)}"
        except RunIdError:
            return []
        elements = [
            _button(USEFUL_ACTION, "Useful", value),
            _button(FALSE_ACTION, "False alarm", value),
        ]
        is_over = notification.reason is NotificationReason.RESOLVED
        if not is_over:
            elements.insert(0, _button(SILENCE_ACTION, "Silence for 1 h", value))
        if not is_over and not notification.is_acknowledged:
            elements.insert(0, _button(ACKNOWLEDGE_ACTION, "Acknowledge", value))
        return [{"type": "actions", "elements": elements}]


def _button(action: str, text: str, value: str) -> dict[str, Any]:
    return {
        "type": "button",
        "action_id": action,
        "text": {"type": "plain_text", "text": text},
        "value": value,
    }


def _history_entry(message: Message) -> dict[str, Any]:
    """A short reply that records the change."""
    lines = "\n".join(history_lines(message))
    section = {"type": "section", "text": markdown(lines)}
    return {"text": headline(message), "blocks": [section], "mrkdwn": False}


def _is_header_value(text: str) -> bool:
    return text.isascii() and text.isprintable() and bool(text) and " " not in text
