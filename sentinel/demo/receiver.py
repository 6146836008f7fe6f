"""HTTP receiver of the demo: stands in for Slack and for an on-call service."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from collections.abc import Mapping
from dataclasses import dataclass
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from queue import SimpleQueue
from typing import Any, Self

_MAX_BODY_BYTES = 1 << 20


@dataclass(frozen=True, slots=True)
class ReceivedNotification:
    """A notification as received by the webhook.

    `step` is the step at which it was due, or that at which the first incident of its `case` was
    found if the case is new; `onset_step` is the step at which that incident began. `seconds` is
    the time from the record that triggered it to its arrival. `cause` and the fields after it are
    empty if no cause is named; `cause_evidence` is ordered by onset.
    """

    reason: str
    case: str
    detector: str
    severity: str
    step: int
    onset_step: int
    summary: str
    remedy: str
    evidence: Mapping[str, float | str]
    seconds: float
    others: tuple[str, ...] = ()
    cause: str = ""
    title: str = ""
    confidence_text: str = ""
    cause_evidence: tuple[str, ...] = ()
    last_good_step: int | None = None


def parse_notification(message: Mapping[str, Any], received_time: float) -> ReceivedNotification:
    """Parse the body of a webhook. Raises KeyError if a key is missing."""
    notification = message["sentinel"]
    incident, reason = notification["incident"], notification["reason"]
    finding = incident["finding"]
    diagnosis = notification["diagnosis"] or {}
    return ReceivedNotification(
        reason=reason,
        case=notification["incident_name"],
        detector=incident["key"]["detector"],
        severity=incident["severity"],
        # A message may wait for others: many steps of a fast machine.
        step=incident["opened_step"] if reason == "opened" else notification["step"],
        onset_step=incident["onset_step"],
        summary=finding["summary"],
        remedy=diagnosis.get("remedy", incident["remedy"]),
        evidence=finding["evidence"],
        seconds=received_time - notification["time"],
        others=tuple(dict.fromkeys(other["detector"] for other in notification["others"])),
        cause=diagnosis.get("cause", ""),
        title=diagnosis.get("title", ""),
        confidence_text=diagnosis.get("confidence_text", ""),
        cause_evidence=tuple(map(format_evidence, diagnosis.get("evidence", ()))),
        last_good_step=diagnosis.get("last_good_step", incident["last_good_step"]),
    )


def format_evidence(evidence: Mapping[str, Any]) -> str:
    """A piece of evidence in JSON as text, with the step since which it holds."""
    since = "" if evidence["step"] is None else f"since step {evidence['step']}: "
    return f"{since}{evidence['text']}"


class DemoReceiver:
    """Context manager that accepts notifications at `url`/slack and `url`/webhook.

    `received` is the queue of notifications in order of arrival: a ReceivedNotification from the
    webhook, the text of the message from Slack. A webhook that is not signed with `secret` is
    rejected. A webhook with an id that was seen before is accepted and ignored. Slack messages are
    also written to `slack-<number>.json` in `folder`, if given.
    """

    def __init__(self, secret: str, folder: Path | None = None) -> None:
        self.secret = secret.encode()
        self.folder = folder
        self._slack_count = 0
        self.received: SimpleQueue[ReceivedNotification | str] = SimpleQueue()
        self._seen_ids: set[str] = set()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.receiver = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="demo-receiver", daemon=True
        )

    def __enter__(self) -> Self:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Base URL of the receiver."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def is_signed(self, message_id: str, timestamp: str, signature: str, body: bytes) -> bool:
        """Whether the signature is valid according to Standard Webhooks."""
        signed = f"{message_id}.{timestamp}.".encode() + body
        digest = hmac.new(self.secret, signed, hashlib.sha256).digest()
        return hmac.compare_digest(signature, f"v1,{base64.b64encode(digest).decode()}")

    def add(self, message_id: str, body: bytes) -> None:
        """Enqueue a signed webhook unless it is a repeat. Raises KeyError or ValueError."""
        notification = parse_notification(json.loads(body), time.time())
        if message_id not in self._seen_ids:
            self._seen_ids.add(message_id)
            self.received.put(notification)

    def add_slack(self, body: bytes) -> None:
        """Enqueue the text of a Slack message. Raises KeyError or ValueError."""
        text = str(json.loads(body)["text"])
        self._slack_count += 1
        if self.folder is not None:
            (self.folder / f"slack-{self._slack_count}.json").write_bytes(body)
        self.received.put(text)


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    receiver: DemoReceiver


class _Handler(BaseHTTPRequestHandler):
    server: _Server

    def do_POST(self) -> None:
        length = int(self.headers.get("Content-Length", 0))
        body = self.rfile.read(min(length, _MAX_BODY_BYTES))
        try:
            status = (
                self._receive_slack(body) if self.path == "/slack" else self._receive_webhook(body)
            )
        except (KeyError, ValueError):
            status = 400
        answer = b"ok" if status == 200 else b"refused"
        self.send_response(status)
        self.send_header("Content-Length", str(len(answer)))
        self.end_headers()
        self.wfile.write(answer)

    def log_message(self, *_: object) -> None:
        """Suppresses the access log; the demo shows what arrives."""

    def _receive_slack(self, body: bytes) -> int:
        self.server.receiver.add_slack(body)
        return 200

    def _receive_webhook(self, body: bytes) -> int:
        receiver, names = self.server.receiver, ("id", "timestamp", "signature")
        message_id, timestamp, signature = (
            self.headers.get(f"webhook-{name}", "") for name in names
        )
        if not receiver.is_signed(message_id, timestamp, signature, body):
            return 401
        receiver.add(message_id, body)
        return 200
