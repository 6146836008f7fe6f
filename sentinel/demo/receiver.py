"""Receiver: stands in for Slack and for an on-call service, on this machine."""

from __future__ import annotations

import base64
import hashlib
import hmac
import json
import threading
import time
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from queue import SimpleQueue

from sentinel.demo.delivery import ReceivedNotification, parse_notification

_MAX_BODY_BYTES = 1 << 20


class DemoReceiver:
    """Context manager: takes pages at `url`/slack and `url`/webhook until it is left.

    What came is in `arrived`, in order: a Delivery from the webhook, the message's text from
    Slack. `secret` is what webhooks must be signed with; others are refused. A webhook that comes
    again under the same identity is taken and left out.
    """

    def __init__(self, secret: str) -> None:
        self.secret = secret.encode()
        self.received: SimpleQueue[ReceivedNotification | str] = SimpleQueue()
        self._seen_ids: set[str] = set()
        self._server = _Server(("127.0.0.1", 0), _Handler)
        self._server.receiver = self
        self._thread = threading.Thread(
            target=self._server.serve_forever, args=(0.05,), name="demo-receiver", daemon=True
        )

    def __enter__(self) -> DemoReceiver:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        """Where it listens."""
        return f"http://127.0.0.1:{self._server.server_port}"

    def is_signed(self, message_id: str, timestamp: str, signature: str, body: bytes) -> bool:
        """Whether the body carries our secret's signature, as Standard Webhooks has it."""
        told = f"{message_id}.{timestamp}.".encode() + body
        digest = hmac.new(self.secret, told, hashlib.sha256).digest()
        return hmac.compare_digest(signature, f"v1,{base64.b64encode(digest).decode()}")

    def add(self, message_id: str, body: bytes) -> None:
        """Keep a signed webhook, unless it is a repeat. Raises KeyError or ValueError."""
        page = parse_notification(json.loads(body), time.time())
        if message_id not in self._seen_ids:
            self._seen_ids.add(message_id)
            self.received.put(page)


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
        """Say nothing: what arrives is shown by the demo."""

    def _receive_slack(self, body: bytes) -> int:
        self.server.receiver.received.put(str(json.loads(body)["text"]))
        return 200

    def _receive_webhook(self, body: bytes) -> int:
        receiver, names = self.server.receiver, ("id", "timestamp", "signature")
        identity, timestamp, signature = (self.headers.get(f"webhook-{name}", "") for name in names)
        if not receiver.is_signed(identity, timestamp, signature, body):
            return 401
        receiver.add(identity, body)
        return 200
