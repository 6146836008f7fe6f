"""A receiver of pages on this machine that can misbehave in every way we know of.

`Receiver` serves one `Mode` per request: those of its script first, in order, then its default.
It keeps what it was sent; `taken` holds the bodies it took, whether it said so or not.

`deadlines_from_silence` lets a sender's deadline begin where the receiver falls silent, so that
short deadlines end what hangs, and never what this machine is merely slow at.
"""

from __future__ import annotations

import json
import queue
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

LONGEST_HANG = 200.0
"""Seconds, unless the receiver is left before; far longer than any deadline."""
LONGEST_WAY = 60.0
"""Seconds within which a request reaches a receiver of the same machine, however busy that is."""


@dataclass(frozen=True)
class Request:
    """One request as it came, at a moment of the monotonic clock.

    `taken` is whether the receiver acted on it, `answered` whether it then said so.
    """

    time: float
    path: str
    headers: dict[str, str]
    body: bytes
    taken: bool
    answered: bool

    @property
    def json(self) -> Any:
        return json.loads(self.body)


Answer = Callable[["Handler"], None]


@dataclass(frozen=True)
class Mode:
    """How one request is treated."""

    answer: Answer
    takes: bool = False
    answers: bool = True


class Handler(BaseHTTPRequestHandler):
    """One connection; `server.plan` says how it is treated."""

    protocol_version = "HTTP/1.1"
    server: _Server

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        mode = self.server.receiver.next_mode()
        headers = {name.lower(): value for name, value in self.headers.items()}
        self.server.receiver.keep(
            Request(
                time.monotonic(), self.path, headers, body, taken=mode.takes, answered=mode.answers
            )
        )
        self.close_connection = True
        mode.answer(self)

    def log_message(self, *_: object) -> None:
        """Say nothing: the test speaks."""

    def say(self, status: int, body: bytes = b"", headers: Iterable[tuple[str, str]] = ()) -> None:
        self.send_response(status)
        for name, value in headers:
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def drip(self, first: bytes, piece: bytes = b"a", every: float = 0.05) -> None:
        """Send `first`, then a piece now and then until somebody hangs up."""
        self.raw(first)
        self.server.receiver.silences.release()
        while not self.server.receiver.closing.wait(every):
            self.raw(piece)

    def raw(self, data: bytes) -> None:
        self.wfile.write(data)
        self.wfile.flush()


class _Server(ThreadingHTTPServer):
    daemon_threads = True
    block_on_close = False
    receiver: Receiver

    def handle_error(self, *_: object) -> None:
        """A client that hangs up is what many modes are about."""


@dataclass
class Receiver:
    """Context manager: serves on a free port of this machine until it is left."""

    default: Mode = field(default_factory=lambda: Mode(_say_ok, takes=True))
    script: list[Mode] = field(default_factory=list)
    requests: list[Request] = field(default_factory=list)
    tls: ssl.SSLContext | None = None

    def __enter__(self):
        self.closing = threading.Event()
        self.silences = threading.Semaphore(0)
        self._lock = threading.Lock()
        self._server = _Server(("127.0.0.1", 0), Handler)
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
        return f"{scheme}://127.0.0.1:{self._server.server_port}/services/T/B/X"

    @property
    def taken(self) -> list[Request]:
        return [request for request in self.requests if request.taken]

    def next_mode(self) -> Mode:
        with self._lock:
            return self.script.pop(0) if self.script else self.default

    def keep(self, request: Request) -> None:
        with self._lock:
            self.requests.append(request)


def ok() -> Mode:
    """Take it and say so."""
    return Mode(_say_ok, takes=True)


def status(code: int, body: bytes = b"no", **headers: str) -> Mode:
    """Refuse it with this status and these headers (`retry_after` is `Retry-After`)."""
    named = [(name.replace("_", "-"), value) for name, value in headers.items()]
    return Mode(lambda h: h.say(code, body, named))


def garbage() -> Mode:
    """Say 200 with somebody else's page, as a hotel's network does."""
    return Mode(lambda h: h.say(200, b"<html>Please log in</html>"))


def redirect(where: str, code: int = 302) -> Mode:
    """Send the caller somewhere else, with a body it has no business reading."""
    return Mode(lambda h: h.say(code, b"a" * 200_000, [("Location", where)]))


def hang(seconds: float = LONGEST_HANG) -> Mode:
    """Read the request and fall silent; hang up after so many seconds."""
    return Mode(lambda h: _silent(h, seconds), answers=False)


def accept_then_hang(seconds: float = LONGEST_HANG) -> Mode:
    """Take it, and fall silent instead of saying so; hang up after so many seconds."""
    return Mode(lambda h: _silent(h, seconds), takes=True, answers=False)


def drip_header() -> Mode:
    """One byte of a header now and then, so that no single wait is long."""
    return Mode(lambda h: h.drip(b"HTTP/1.1 200 OK\r\nX: "))


def drip_body() -> Mode:
    """A status of 200, and a body that never ends."""
    return Mode(lambda h: h.drip(b"HTTP/1.1 200 OK\r\nContent-Length: 99999\r\n\r\n"))


def endless(code: int = 200, **headers: str) -> Mode:
    """A body as fast as the connection carries it, without end."""
    lines = [f"HTTP/1.1 {code} Whatever", *(f"{name}: {value}" for name, value in headers.items())]
    head = "\r\n".join([*lines, "", ""]).encode()
    return Mode(lambda h: h.drip(head, b"ok" * 50_000, every=0.0))


def not_http() -> Mode:
    """Bytes that are no answer at all."""
    return Mode(lambda h: h.raw(b"\x00\xff garbage \r\n\r\n"))


def hang_up() -> Mode:
    """Close without a word."""
    return Mode(lambda _: None, answers=False)


def _say_ok(handler: Handler) -> None:
    handler.say(200, b"ok")


def _silent(handler: Handler, seconds: float) -> None:
    handler.server.receiver.silences.release()
    handler.server.receiver.closing.wait(seconds)


@contextmanager
def deadlines_from_silence(there: Receiver) -> Iterator[None]:
    """While this lasts, a sender's deadline begins when `there` falls silent over its request."""

    class Answers(queue.SimpleQueue):
        def get(self, timeout: float) -> Any:
            limit = time.monotonic() + LONGEST_WAY
            while time.monotonic() < limit and not there.silences.acquire(blocking=False):
                try:
                    return super().get(timeout=0.01)
                except queue.Empty:
                    continue
            return super().get(timeout=timeout)

    own = SimpleNamespace(SimpleQueue=Answers, Empty=queue.Empty)
    with mock.patch("sentinel.notify.http.queue", own):
        yield
