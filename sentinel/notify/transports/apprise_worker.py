"""The process that calls apprise: reads one call as JSON, prints its outcome as JSON.

The library would follow redirects and wait for its own retries. Here it sends each request once, to
the addresses that `url_policy` permits.
"""

from __future__ import annotations

import json
import logging
import sys
import time
from typing import Any

import requests

from sentinel.config.url_policy import url_refusal
from sentinel.notify.transports.abortable_connection import AbortableAdapter, AbortableConnections
from sentinel.notify.transports.http import parse_retry_after


def main() -> None:
    """Send the call on standard input. Exit status 0 in any case but a bug."""
    call = json.load(sys.stdin)
    logging.disable()
    print(json.dumps(send(call)))  # noqa: T201 - the outcome


def send(call: dict[str, Any]) -> dict[str, Any]:
    """The fields of a `Response`."""
    try:
        import apprise  # noqa: PLC0415 - an optional dependency
    except ImportError:
        return {"error": "AppriseNotInstalled"}
    sent = _restrict_requests(allow_http=call["allow_http"])
    # No file of the user is read, and no plug-in is loaded.
    services = apprise.Apprise(asset=apprise.AppriseAsset(async_mode=False))
    if not services.add(call["url"]):
        return {"error": "AppriseUrlError"}
    for service in services:
        service.retry = 0
    kind = apprise.NotifyType(call["kind"])
    text = apprise.NotifyFormat.TEXT
    if services.notify(body=call["body"], title=call["title"], notify_type=kind, body_format=text):
        return {"status": 200}
    if sent.refused:
        return {"error": "AddressRefusedError"}
    if sent.last is None or 200 <= sent.last.status_code < 300:
        return {"error": sent.error or "AppriseError"}
    retry_after = parse_retry_after(sent.last.headers.get("Retry-After"), time.time())
    return {"status": sent.last.status_code, "retry_after": retry_after}


class _SentRequests:
    """What became of the requests of this process."""

    def __init__(self) -> None:
        self.last: requests.Response | None = None
        self.refused = False
        self.error = ""


def _restrict_requests(*, allow_http: bool) -> _SentRequests:
    """Make every session of `requests` check its URLs and peers and follow no redirect."""
    sent = _SentRequests()
    request = requests.Session.request
    connections = AbortableConnections()

    def request_once(
        session: requests.Session, method: str, url: str, *args: Any, **settings: Any
    ) -> requests.Response:
        if url_refusal(str(url), allow_http=allow_http):
            sent.refused = True
            raise requests.exceptions.InvalidURL
        session.mount("http://", AbortableAdapter(connections))
        session.mount("https://", AbortableAdapter(connections))
        try:
            settings["allow_redirects"] = False
            sent.last = request(session, method, url, *args, **settings)
        except Exception as error:
            sent.error = type(error).__name__
            raise
        return sent.last

    requests.Session.request = request_once  # type: ignore[assignment,method-assign]
    return sent


if __name__ == "__main__":
    main()
