"""Local receivers that answer as the vendors document, refusals included.

Each is a `Receiver` with the state that its answers depend on. What they check and answer is from
the pages that the docstring of each sink names.
"""

from __future__ import annotations

import itertools
import json
import re
from dataclasses import dataclass, field
from typing import Self
from urllib.parse import parse_qs, urlsplit

from support.webhook_receiver import Handler, Mode, Receiver, Request

SLACK_TOKEN = "xoxb-1234-CANARY"
SLACK_APP_TOKEN = "xapp-1234-CANARY"
PAGERDUTY_KEY = "CANARY".ljust(32, "0")
_JSON = [("Content-Type", "application/json")]


def _answer(handler: Handler, status: int, content: object) -> None:
    handler.send(status, json.dumps(content).encode(), _JSON)


class _Vendor:
    """A context manager around a `Receiver` whose requests `_respond` treats."""

    def __post_init__(self) -> None:
        self.receiver = Receiver(Mode(self._respond, accepts=True))
        self._numbers = itertools.count(1)

    def __enter__(self) -> Self:
        self.receiver.__enter__()
        return self

    def __exit__(self, *error) -> None:
        self.receiver.__exit__(*error)

    @property
    def address(self) -> str:
        return self.receiver.url.partition("/services/")[0]

    def _respond(self, handler: Handler) -> None:
        raise NotImplementedError


@dataclass
class FakeSlack(_Vendor):
    """The Web API of a workspace with the channel `training` (C1), of which the bot is a member."""

    messages: dict[str, dict] = field(default_factory=dict)
    refusals: list[str] = field(default_factory=list)
    """Errors that the next calls get instead of a treatment."""
    socket_url: str = ""
    """What `apps.connections.open` returns."""
    files: dict[str, dict] = field(default_factory=dict)
    """The uploaded files by id: name, length, content, and where they were shared."""

    @property
    def api_url(self) -> str:
        return self.address + "/api/"

    @property
    def posts(self) -> list[dict]:
        """The messages of the channel itself, in order: those that alert somebody."""
        return [each for each in self.messages.values() if self._is_in_channel(each)]

    def thread(self, first: dict) -> list[dict]:
        return [each for each in self.messages.values() if each.get("thread_ts") == first["ts"]]

    @staticmethod
    def _is_in_channel(message: dict) -> bool:
        return "thread_ts" not in message or bool(message.get("reply_broadcast"))

    def _respond(self, handler: Handler) -> None:
        if self.refusals:
            error = self.refusals.pop(0)
            if error == "ratelimited":
                body = json.dumps({"ok": False, "error": error}).encode()
                handler.send(429, body, [*_JSON, ("Retry-After", "2")])
            else:
                _answer(handler, 200, {"ok": False, "error": error})
            return
        _answer(handler, 200, self._call(handler))

    def _call(self, handler: Handler) -> dict:
        request = handler.received
        method = request.path.rpartition("/")[2]
        if request.path.startswith("/upload/"):
            return self._store_upload(request)
        return self._call_method(method, request)

    def _call_method(self, method: str, request: Request) -> dict:
        token = SLACK_APP_TOKEN if method == "apps.connections.open" else SLACK_TOKEN
        if request.headers.get("authorization") != f"Bearer {token}":
            return {"ok": False, "error": "invalid_auth"}
        if method == "apps.connections.open":
            return {"ok": True, "url": self.socket_url}
        if method == "files.getUploadURLExternal":
            return self._open_upload(request)
        if method == "files.completeUploadExternal":
            return self._share_upload(request.json)
        content = request.json
        if error := slack_refusal(content):
            return {"ok": False, "error": error}
        return self._post(content) if method == "chat.postMessage" else self._update(content)

    def _open_upload(self, request: Request) -> dict:
        """It takes a form only, and refuses an empty file."""
        form = {key: value[0] for key, value in parse_qs(request.body.decode()).items()}
        if not form.get("filename") or not int(form.get("length", "0")):
            return {"ok": False, "error": "missing_argument"}
        file_id = f"F{next(self._numbers):010d}"
        self.files[file_id] = {"name": form["filename"], "length": int(form["length"])}
        return {"ok": True, "upload_url": f"{self.address}/upload/{file_id}", "file_id": file_id}

    def _store_upload(self, request: Request) -> dict:
        # The address is the permission: whoever has it needs no token.
        assert "authorization" not in request.headers
        self.files[request.path.rpartition("/")[2]]["content"] = request.body
        return {}

    def _share_upload(self, content: dict) -> dict:
        (shared,) = content["files"]
        file = self.files.get(shared["id"], {})
        if len(file.get("content", b"")) != file.get("length"):
            return {"ok": False, "error": "file_not_found"}
        if content["channel_id"] != "C1" or content["thread_ts"] not in self.messages:
            return {"ok": False, "error": "invalid_channel"}
        file["thread_ts"] = content["thread_ts"]
        return {"ok": True, "files": [{"id": shared["id"], "title": shared.get("title")}]}

    def _post(self, content: dict) -> dict:
        if content["channel"] not in {"training", "#training", "C1"}:
            return {"ok": False, "error": "channel_not_found"}
        parent = content.get("thread_ts")
        if parent and parent not in self.messages:
            return {"ok": False, "error": "thread_not_found"}
        stamp = f"1700000000.{next(self._numbers):06d}"
        message = {**content, "ts": stamp}
        self.messages[stamp] = message
        posted = {"ts": stamp, **({"thread_ts": parent} if parent else {})}
        return {"ok": True, "channel": "C1", "ts": stamp, "message": posted}

    def _update(self, content: dict) -> dict:
        if content["channel"] != "C1":
            return {"ok": False, "error": "channel_not_found"}
        if content["ts"] not in self.messages:
            return {"ok": False, "error": "message_not_found"}
        self.messages[content["ts"]].update(content)
        return {"ok": True, "channel": "C1", "ts": content["ts"], "text": content["text"]}


def slack_refusal(content: dict) -> str:
    """The error of Slack for a message, empty if it is valid."""
    blocks, total = content.get("blocks", []), 0
    if not content.get("text"):
        return "no_text"
    for block in blocks:
        texts = [block["text"]] if "text" in block else []
        texts += [each["text"] if each["type"] == "button" else each for each in _parts(block)]
        limit = {"header": 150, "section": 3000, "context": 3000, "actions": 75}[block["type"]]
        if not all(0 < len(each["text"]) <= limit for each in texts):
            return "invalid_blocks"
        if len(_parts(block)) > (10 if block["type"] == "context" else 25):
            return "invalid_blocks"
        total += sum(len(each["text"]) for each in texts)
    if len(blocks) > 50:
        return "invalid_blocks"
    return "msg_blocks_too_long" if total > 9_600 else ""


def _parts(block: dict) -> list[dict]:
    return [*block.get("elements", []), *block.get("fields", [])]


@dataclass
class FakeDiscord(_Vendor):
    """One webhook, `/api/webhooks/1/CANARY`, and the messages of its channel."""

    messages: dict[str, dict] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.address + "/api/webhooks/1/CANARY"

    def _respond(self, handler: Handler) -> None:
        request = handler.received
        parts = urlsplit(request.path)
        match = re.fullmatch(r"/api/webhooks/1/CANARY(?:/messages/(\d+))?", parts.path)
        if match is None:
            _answer(handler, 404, {"message": "Unknown Webhook", "code": 10015})
            return
        if errors := discord_refusal(request.json):
            _answer(handler, 400, {"code": 50035, "message": "Invalid Form Body", "errors": errors})
            return
        if request.method == "PATCH":
            if match[1] not in self.messages:
                _answer(handler, 404, {"message": "Unknown Message", "code": 10008})
                return
            self.messages[match[1]].update(request.json)
            _answer(handler, 200, {"id": match[1], **self.messages[match[1]]})
            return
        message_id = str(900_000_000_000_000_000 + next(self._numbers))
        self.messages[message_id] = request.json
        if parse_qs(parts.query).get("wait") == ["true"]:
            _answer(handler, 200, {"id": message_id, **request.json})
        else:
            handler.send(204)


def discord_refusal(content: dict) -> list[str]:
    """What Discord finds wrong with a message."""
    errors = [] if content.get("content") or content.get("embeds") else ["empty message"]
    errors += ["content"] if len(content.get("content", "")) > 2000 else []
    total = 0
    for embed in content.get("embeds", []):
        fields = embed.get("fields", [])
        lengths = {
            "title": (len(embed.get("title", "")), 256),
            "description": (len(embed.get("description", "")), 4096),
            "footer": (len(embed.get("footer", {}).get("text", "")), 2048),
            "fields": (len(fields), 25),
            "names": (max((len(each["name"]) for each in fields), default=1), 256),
            "values": (max((len(each["value"]) for each in fields), default=1), 1024),
        }
        errors += [name for name, (length, limit) in lengths.items() if length > limit]
        errors += (
            ["empty field"] if not all(each["name"] and each["value"] for each in fields) else []
        )
        total += sum(lengths[name][0] for name in ("title", "description", "footer"))
        total += sum(len(each["name"]) + len(each["value"]) for each in fields)
    return [*errors, *(["total"] if total > 6000 else [])]


@dataclass
class FakePagerduty(_Vendor):
    """A service: its alerts by `dedup_key`, each with its events."""

    alerts: dict[str, list[dict]] = field(default_factory=dict)

    @property
    def url(self) -> str:
        return self.address + "/v2/enqueue"

    def _respond(self, handler: Handler) -> None:
        event = handler.received.json
        if errors := pagerduty_refusal(event, len(handler.received.body)):
            content = {"status": "invalid event", "message": "Event object is invalid"}
            _answer(handler, 400, {**content, "errors": errors})
            return
        self.alerts.setdefault(event["dedup_key"], []).append(event)
        content = {"status": "success", "message": "Event processed"}
        _answer(handler, 202, {**content, "dedup_key": event["dedup_key"]})


def pagerduty_refusal(event: dict, size: int) -> list[str]:
    """What PagerDuty finds wrong with an event."""
    errors = []
    if len(event.get("routing_key", "")) != 32:
        errors.append("Length of 'routing_key' is incorrect (should be 32 characters)")
    if not 0 < len(event.get("dedup_key", "")) <= 255:
        errors.append("'dedup_key' is missing or too long")
    if event.get("event_action") not in {"trigger", "acknowledge", "resolve"}:
        errors.append("'event_action' is invalid")
    if event.get("event_action") == "trigger":
        payload = event.get("payload", {})
        if not 0 < len(payload.get("summary", "")) <= 1024:
            errors.append("'payload.summary' is missing or too long")
        if payload.get("severity") not in {"critical", "error", "warning", "info"}:
            errors.append("'payload.severity' is invalid")
        if not payload.get("source"):
            errors.append("'payload.source' is missing or blank")
        if not all(each.get("href", "").startswith("http") for each in event.get("links", [])):
            errors.append("'links' is invalid")
    return [*errors, *(["too large"] if size > 512_000 else [])]
