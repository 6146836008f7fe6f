"""Sender: one HTTP POST, once, within a hard deadline, and not a word about its address.

Redirects are not followed, at most 64 KiB of the answer are read, nothing is decompressed, and
what goes wrong is told as a class name: the texts of HTTP libraries hold the whole URL.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from dataclasses import dataclass, field
from urllib.parse import urlsplit

import requests

from sentinel.config.url_policy import is_loopback, url_refusal
from sentinel.model.notification import Notification
from sentinel.model.request import Request, SignedSink, Sink
from sentinel.notify import retry_after
from sentinel.notify.bounded_connection import AbortableAdapter, AbortableConnections

REQUEST_DEADLINE_SECONDS = 15.0
"""Seconds from the call to the whole answer, name look-up included."""

MAX_RESPONSE_BYTES = 65536
"""Bytes of the answer that are read."""

_READ_TIMEOUT_MARGIN_SECONDS = 60.0
"""Seconds by which one silence may outlast the deadline, however late this machine wakes us."""

_THREAD_NAME = "sentinel-send"
_HEADERS = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "sentinel"}


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """What came back. `status` is 0 where nothing did, and `error` then is a class name.

    `retry_after` is the silence asked for, in seconds.
    """

    status: int = 0
    body: str = field(default="", repr=False)
    retry_after: float | None = None
    error: str = ""

    def __str__(self) -> str:
        return self.error or f"HTTP {self.status}"


def render_request(sink: Sink, notification: Notification, identity: str, now: float) -> Request:
    """The page as the request that `sink` makes of it at the moment `now`."""
    post = sink.render(notification, identity)
    return sink.sign(post, now) if isinstance(sink, SignedSink) else post


def send(
    request: Request, *, deadline: float = REQUEST_DEADLINE_SECONDS, allow_http: bool = False
) -> HttpResponse:
    """POST once and say what came back. Never raises on the network's account, never waits longer.

    `allow_http` permits unencrypted requests to other machines.
    """
    if url_refusal(request.url, allow_http=allow_http):
        return HttpResponse(error="AddressRefusedError")
    answers: queue.SimpleQueue[HttpResponse] = queue.SimpleQueue()
    leash = AbortableConnections()
    # A thread of its own, because nothing else can stop waiting for a name server.
    attempt = threading.Thread(
        target=lambda: answers.put(_try_exchange(request, leash, deadline)),
        name=_THREAD_NAME,
        daemon=True,
    )
    attempt.start()
    try:
        return answers.get(timeout=deadline)
    except queue.Empty:
        # Whatever the attempt says from here on is a lie: a cut answer can read as a whole one.
        leash.abort()
        return HttpResponse(error="DeadlineError")


def _try_exchange(
    request: Request, connections: AbortableConnections, deadline: float
) -> HttpResponse:
    try:
        with _NoRedirectSession() as session:
            return _exchange(session, request, connections, deadline)
    except Exception as error:
        return HttpResponse(error=_root_cause_name(error))
    finally:
        connections.close()


def _exchange(
    session: requests.Session, request: Request, connections: AbortableConnections, deadline: float
) -> HttpResponse:
    host = urlsplit(request.url).hostname or ""
    session.mount("http://", AbortableAdapter(connections))
    session.mount("https://", AbortableAdapter(connections))
    with session.post(
        request.url,
        data=request.body,
        headers={**request.headers, **_HEADERS},
        auth=_no_auth,
        # A proxy is for reaching others; it must not see what is meant for this machine.
        proxies={"no_proxy": host} if is_loopback(host) else None,
        # Of one wait each; so much longer than the deadline that only that can end an exchange.
        timeout=deadline + _READ_TIMEOUT_MARGIN_SECONDS,
        stream=True,
        allow_redirects=False,
    ) as response:
        body = response.raw.read(MAX_RESPONSE_BYTES, decode_content=False)
        wait = retry_after.parse_retry_after(response.headers.get("Retry-After"), time.time())
        return HttpResponse(response.status_code, body.decode("utf-8", "replace"), wait)


class _NoRedirectSession(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        # Even when told not to follow, the library reads a redirect's whole body; so there is none.
        del resp


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    # Given as `auth`, it keeps credentials of ~/.netrc from being added.
    return request


def _root_cause_name(error: BaseException) -> str:
    inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return _root_cause_name(inner) if inner else type(error).__name__


class _HttpLogFilter(logging.Filter):
    """Drops what HTTP libraries log from the sending thread: request lines, thus secrets."""

    def filter(self, _record: logging.LogRecord) -> bool:
        return threading.current_thread().name != _THREAD_NAME


def _install_log_filter() -> None:
    silence = _HttpLogFilter()
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in {"requests", "urllib3"}:
            logging.getLogger(name).addFilter(silence)


_install_log_filter()
