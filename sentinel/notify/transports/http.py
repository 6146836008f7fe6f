"""One HTTP request within a hard deadline that never exposes its URL.

Redirects are not followed, at most 64 KiB of the response are read, and nothing is decompressed.
Errors are reported as a class name, because the messages of HTTP libraries contain the whole URL.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable
from datetime import UTC
from email.utils import parsedate_to_datetime
from math import isfinite
from urllib.parse import urlsplit

import requests

from sentinel.config.url_policy import is_loopback, url_refusal
from sentinel.model.delivery import HttpRequest, Response
from sentinel.notify.transports.abortable_connection import (
    CONNECT_SHARE,
    THREAD_NAME,
    AbortableAdapter,
    AbortableConnections,
    exchange_within,
)
from sentinel.notify.transports.errors import AddressRefusedError

MAX_RESPONSE_BYTES = 65536
"""Bytes of the response that are read."""

MAX_RETRY_AFTER_SECONDS = 3600.0
"""Longest delay that a receiver can request."""

_MAX_HEADER_CHARS = 64
_READ_TIMEOUT_MARGIN_SECONDS = 60.0
"""Seconds by which the timeout of one read exceeds the deadline."""

_HEADERS = {"Accept-Encoding": "identity", "Connection": "close", "User-Agent": "sentinel"}


def send(
    request: HttpRequest, *, deadline: float, is_wanted: Callable[[], bool] = lambda: True
) -> Response:
    """Send once and return the outcome, within `deadline` seconds. Never raises a network error.

    `is_wanted` is asked once the receiver is reached; if not, the error is PostponedError.
    """
    if url_refusal(request.url, allow_http=request.allow_http):
        return Response(error=AddressRefusedError.__name__)
    return exchange_within(deadline, lambda opened: _exchange(request, opened, deadline), is_wanted)


def _exchange(request: HttpRequest, connections: AbortableConnections, deadline: float) -> Response:
    host = urlsplit(request.url).hostname or ""
    with _NoRedirectSession() as session:
        session.mount("http://", AbortableAdapter(connections))
        session.mount("https://", AbortableAdapter(connections))
        with session.request(
            request.method,
            request.url,
            data=request.body or None,
            headers={**request.headers, **_HEADERS},
            auth=_no_auth,
            # Requests to this machine must not pass through a proxy.
            proxies={"no_proxy": host} if is_loopback(host) else None,
            verify=request.ca_file or None,
            cert=_certificate(request.client_files),
            # That of a read is longer than the deadline, so that only the deadline applies.
            # That of a connection leaves time for the next address of the host.
            timeout=(deadline * CONNECT_SHARE, deadline + _READ_TIMEOUT_MARGIN_SECONDS),
            stream=True,
            allow_redirects=False,
        ) as response:
            body = response.raw.read(MAX_RESPONSE_BYTES, decode_content=False)
            retry_after = parse_retry_after(response.headers.get("Retry-After"), time.time())
            return Response(response.status_code, body.decode("utf-8", "replace"), retry_after)


def _certificate(files: tuple[str, ...]) -> str | tuple[str, str] | None:
    """One file, or certificate and key, as `requests` expects them."""
    match files:
        case (certificate, key):
            return certificate, key
        case (both,):
            return both
    return None


class _NoRedirectSession(requests.Session):
    def get_redirect_target(self, resp: requests.Response) -> None:
        # Without this, the library reads the whole body of a redirect that it does not follow.
        del resp


def _no_auth(request: requests.PreparedRequest) -> requests.PreparedRequest:
    # As `auth`, it prevents the library from adding credentials of ~/.netrc.
    return request


class _HttpLogFilter(logging.Filter):
    """Drops log records of HTTP libraries from the sending thread: request lines hold secrets."""

    def filter(self, _record: logging.LogRecord) -> bool:
        return threading.current_thread().name != THREAD_NAME


def _install_log_filter() -> None:
    log_filter = _HttpLogFilter()
    for name in list(logging.root.manager.loggerDict):
        if name.partition(".")[0] in {"requests", "urllib3"}:
            logging.getLogger(name).addFilter(log_filter)


_install_log_filter()


def parse_retry_after(header: str | None, now: float) -> float | None:
    """Delay in seconds that a `Retry-After` header requests, or None if it is not valid.

    RFC 9110 allows whole seconds and HTTP dates. Fractions of a second are common and accepted;
    `urllib3.util.Retry` refuses them, and reads a date without a zone as local time.

    >>> parse_retry_after("1.5", now=0), parse_retry_after("Thu, 01 Jan 1970 00:00:09 GMT", now=4)
    (1.5, 5.0)
    >>> parse_retry_after("soon", now=0)
    """
    if header is None or len(header) > _MAX_HEADER_CHARS:
        return None
    delay = _parse_number(header)
    if delay is None:
        retry_time = _parse_date(header)
        delay = None if retry_time is None else max(0.0, retry_time - now)
    return None if delay is None or delay < 0 else min(delay, MAX_RETRY_AFTER_SECONDS)


def _parse_number(header: str) -> float | None:
    try:
        number = float(header)
    except ValueError:
        return None
    return number if isfinite(number) else None


def _parse_date(header: str) -> float | None:
    try:
        date = parsedate_to_datetime(header)
        if date.tzinfo is None:
            date = date.replace(tzinfo=UTC)
        return date.timestamp()
    except (TypeError, ValueError, OverflowError):
        return None
