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
from sentinel.model.incident import Page
from sentinel.model.request import Post, Sink, Stamped
from sentinel.notify import retry_after
from sentinel.notify.bounded_connection import Leash, LeashedAdapter

DEADLINE = 15.0
"""Seconds from the call to the whole answer, name look-up included."""

BODY_CAP = 65536
"""Bytes of the answer that are read."""

_MARGIN = 60.0
"""Seconds by which one silence may outlast the deadline, however late this machine wakes us."""

_THREAD = "sentinel-send"
_HEADERS = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "sentinel"}


@dataclass(frozen=True, slots=True)
class Answer:
    """What came back. `status` is 0 where nothing did, and `error` then is a class name.

    `retry_after` is the silence asked for, in seconds.
    """

    status: int = 0
    body: str = field(default="", repr=False)
    retry_after: float | None = None
    error: str = ""

    def __str__(self) -> str:
        return self.error or f"HTTP {self.status}"


def worded(sink: Sink, page: Page, identity: str, now: float) -> Post:
    """The page as the request that `sink` makes of it at the moment `now`."""
    post = sink.word(page, identity)
    return sink.stamp(post, now) if isinstance(sink, Stamped) else post


def send(post: Post, *, deadline: float = DEADLINE, allow_http: bool = False) -> Answer:
    """POST once and say what came back. Never raises on the network's account, never waits longer.

    `allow_http` permits unencrypted requests to other machines.
    """
    if url_refusal(post.url, allow_http=allow_http):
        return Answer(error="AddressRefusedError")
    answers: queue.SimpleQueue[Answer] = queue.SimpleQueue()
    leash = Leash()
    # A thread of its own, because nothing else can stop waiting for a name server.
    attempt = threading.Thread(
        target=lambda: answers.put(_attempt(post, leash, deadline)), name=_THREAD, daemon=True
    )
    attempt.start()
    try:
        return answers.get(timeout=deadline)
    except queue.Empty:
        # Whatever the attempt says from here on is a lie: a cut answer can read as a whole one.
        leash.cut()
        return Answer(error="DeadlineError")


def _attempt(post: Post, leash: Leash, deadline: float) -> Answer:
    try:
        with _Session() as session:
            return _exchange(session, post, leash, deadline)
    except Exception as error:
        return Answer(error=_innermost(error))
    finally:
        leash.release()


def _exchange(session: requests.Session, post: Post, leash: Leash, deadline: float) -> Answer:
    host = urlsplit(post.url).hostname or ""
    session.mount("http://", LeashedAdapter(leash))
    session.mount("https://", LeashedAdapter(leash))
    with session.post(
        post.url,
        data=post.body,
        headers={**post.headers, **_HEADERS},
        auth=_as_it_is,
        # A proxy is for reaching others; it must not see what is meant for this machine.
        proxies={"no_proxy": host} if is_loopback(host) else None,
        # Of one wait each; so much longer than the deadline that only that can end an exchange.
        timeout=deadline + _MARGIN,
        stream=True,
        allow_redirects=False,
    ) as response:
        body = response.raw.read(BODY_CAP, decode_content=False)
        wait = retry_after.seconds(response.headers.get("Retry-After"), time.time())
        return Answer(response.status_code, body.decode("utf-8", "replace"), wait)


class _Session(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        # Even when told not to follow, the library reads a redirect's whole body; so there is none.
        del resp


def _as_it_is(request: requests.PreparedRequest) -> requests.PreparedRequest:
    # Given as `auth`, it keeps credentials of ~/.netrc from being added.
    return request


def _innermost(error: BaseException) -> str:
    inner = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return _innermost(inner) if inner else type(error).__name__


class _Silence(logging.Filter):
    """Drops what HTTP libraries log from the sending thread: request lines, thus secrets."""

    def filter(self, _record: logging.LogRecord) -> bool:
        return threading.current_thread().name != _THREAD


def _silence() -> None:
    silence = _Silence()
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in {"requests", "urllib3"}:
            logging.getLogger(name).addFilter(silence)


_silence()
