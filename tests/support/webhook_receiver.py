"""A local HTTP receiver of notifications that can fail in many ways.

`Receiver` treats each request by one `Mode`: those of its script in order, then its default. It
stores all requests; `accepted` are those it accepted, with or without a response.

`deadlines_from_silence` starts the deadline of the sender when the receiver stops sending, so that
a short deadline ends a hanging request but not one that is slow on a busy machine.
"""

from __future__ import annotations

import json
import queue
import socket
import ssl
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from types import SimpleNamespace, TracebackType
from typing import Any
from unittest import mock

MAX_HANG_SECONDS = 200.0
"""Far longer than any deadline; the end of the receiver ends a hang before."""
MAX_ARRIVAL_SECONDS = 240.0
"""Time in which a request reaches the receiver on a busy machine."""


@dataclass(frozen=True)
class Request:
    """One received request; `time` is on the monotonic clock.

    `accepted` is whether the receiver processed it, `answered` whether it sent a response.
    """

    time: float
    path: str
    headers: dict[str, str]
    body: bytes
    accepted: bool
    answered: bool
    method: str = "POST"

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Respond = Callable[["Handler"], None]


@dataclass(frozen=True)
class Mode:
    """How the receiver treats one request."""

    respond: Respond
    accepts: bool = False
    answers: bool = True


class Handler(BaseHTTPRequestHandler):
    """One connection, treated by the next mode of the receiver."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = self.body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        mode = self.server.receiver.next_mode()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.received = Request(
            time.monotonic(),
            self.path,
            headers,
            body,
            accepted=mode.accepts,
            answered=mode.answers,
            method=self.command,
        )
        self.server.receiver.store(self.received)
        self.close_connection = True
        mode.respond(self)

    do_PATCH = do_POST  # noqa: N815 - the name that the server looks for

    def log_message(self, *_: object) -> None:
        """Log nothing."""

    def send(self, status: int, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def drip(self, first: bytes, piece: bytes = b"a", interval: float = 0.05) -> None:
        """Send `first`, then a piece per interval in seconds until the connection closes."""
        self.send_raw(first)
        self.server.receiver.silences.release()
        while not self.server.receiver.closing.wait(interval):
            self.send_raw(piece)

    def send_raw(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    receiver: Receiver

    def get_request(self) -> tuple[socket.socket, Any]:
        """The next connection, with TLS if that is on; closes those that get no handshake."""
        if self.receiver.refused_handshakes:
            self.receiver.refused_handshakes -= 1
            connection, _ = socket.socket.accept(self.socket)
            connection.recv(1)
            connection.close()
            raise ConnectionAbortedError
        return super().get_request()

    def handle_error(self, *_: object) -> None:
        """Ignore clients that close the connection."""


@dataclass
class Receiver:
    """Context manager that serves on a free port of the local `address`.

    The first `refused_handshakes` connections are closed before TLS is set up.
    """

    default: Mode = field(default_factory=lambda: Mode(_send_ok, accepts=True))
    script: list[Mode] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    tls: ssl.SSLContext | None = None
    address: str = "127.0.0.1"
    refused_handshakes: int = 0

    def __enter__(self):
        self.closing = threading.Event()
        self.silences = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._server = _Server((self.address, 0), Handler)
        self._server.receiver = self
        if self.tls:
            self._server.socket = self.tls.wrap_socket(self._server.socket, server_side=True)
        self._thread = threading.Thread(
            target=self._server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True
        )
        self._thread.start()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.closing.set()
        self._server.shutdown()
        self._server.server_close()
        self._thread.join()

    @property
    def url(self) -> str:
        scheme = "https" if self.tls else "http"
        return f"{scheme}://{self.address}:{self._server.server_port}/services/T/B/X"

    @property
    def accepted(self) -> list[Request]:
        return [request for request in self.requests if request.accepted]

    def next_mode(self) -> Mode:
        with self._lock:
            return self.script.pop(0) if self.script else self.default

    def store(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)


def ok() -> Mode:
    """Accept the request."""
    return Mode(_send_ok, accepts=True)


def accept_with_id() -> Mode:
    """Accept the request; respond with the message that it `changes`, or its own `id`."""

    def respond(handler: Handler) -> None:
        body = json.loads(handler.body)
        handler.send(200, f"{body.get('changes') or body['id']}".encode())

    return Mode(respond, accepts=True)


def status(code: int, body: bytes = b"no", **headers: str) -> Mode:
    """Reject with this status and these headers (`retry_after` is `Retry-After`)."""
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Mode(lambda h: h.send(code, body, named))


def garbage() -> Mode:
    """Respond 200 with a login page, as a captive portal does."""
    return Mode(lambda h: h.send(200, b"<html>Please log in</html>"))


def redirect(location: str, code: int = 302) -> Mode:
    """Redirect, with a large body that the client must not read."""
    return Mode(lambda h: h.send(code, b"a" * 200_000, [("Location", location)]))


def hang(seconds: float = MAX_HANG_SECONDS) -> Mode:
    """Read the request, send nothing, and close after so many seconds."""
    return Mode(lambda h: _wait(h, seconds), answers=False)


def accept_then_hang(seconds: float = MAX_HANG_SECONDS) -> Mode:
    """Accept the request, send nothing, and close after so many seconds."""
    return Mode(lambda h: _wait(h, seconds), accepts=True, answers=False)


def drip_header() -> Mode:
    """Send a header byte by byte, so that no single read is long."""
    return Mode(lambda h: h.drip(b"HTTP/1.1 200 OK\r\nX: "))


def drip_body() -> Mode:
    """Respond 200 with a slow body that never ends."""
    return Mode(lambda h: h.drip(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"))


def endless(code: int = 200, **headers: str) -> Mode:
    """Respond with a fast body that never ends."""
    lines = [f"HTTP/1.1 {code} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join([*lines, "", ""]).encode()
    return Mode(lambda h: h.drip(head, b"ok" * 50_000, interval=0.0))


def not_http() -> Mode:
    """Send bytes that are not HTTP."""
    return Mode(lambda h: h.send_raw(b"\x00\xff garbage \r\n\r\n"))


def hang_up() -> Mode:
    """Close without a response."""
    return Mode(lambda _: None, answers=False)


def _send_ok(handler: Handler) -> None:
    handler.send(200, b"ok")


def _wait(handler: Handler, seconds: float) -> None:
    handler.server.receiver.silences.release()
    handler.server.receiver.closing.wait(seconds)


@contextmanager
def deadlines_from_silence(receiver: Receiver) -> Iterator[None]:
    """Start the deadline of the sender when `receiver` stops sending."""

    class Responses(queue.SimpleQueue):
        def get(self, timeout: float) -> Any:
            arrival_deadline = time.monotonic() + MAX_ARRIVAL_SECONDS
            while time.monotonic() < arrival_deadline and not receiver.silences.acquire(
                blocking=False
            ):
                try:
                    return super().get(timeout=0.01)
                except queue.Empty:
                    continue
            return super().get(timeout=timeout)

    patched_queue = SimpleNamespace(SimpleQueue=Responses, Empty=queue.Empty)
    with mock.patch("sentinel.notify.transports.abortable_connection.queue", patched_queue):
        yield
