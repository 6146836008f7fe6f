"""JSON over HTTP, with the addresses and the deadline of every other notification."""

from __future__ import annotations

import base64
import json
from collections.abc import Mapping
from typing import Any, Literal

from sentinel.model.delivery import HttpRequest
from sentinel.model.json_safe import parse_object
from sentinel.notify.trackers.outcome import NotRecordedError
from sentinel.notify.transports import http
from sentinel.notify.transports.errors import AddressRefusedError

REQUEST_SECONDS = 15.0

_REASONS = {401: "unauthorized", 403: "unauthorized", 404: "not_found", 410: "not_found"}
_TOO_MANY_REQUESTS = 429


def request_json(
    url: str,
    content: Mapping[str, Any] | None,
    headers: Mapping[str, str],
    *,
    allow_http: bool = False,
) -> dict[str, Any]:
    """The JSON object that a GET, or a POST of `content`, responds with.

    Raises NotRecordedError.
    """
    method: Literal["GET", "POST"] = "GET" if content is None else "POST"
    body = b"" if content is None else json.dumps(content).encode()
    headers = {**headers, "Content-Type": "application/json"}
    request = HttpRequest(url, body, headers, method, allow_http)
    response = http.send(request, deadline=REQUEST_SECONDS)
    if response.error:
        is_refused = response.error == AddressRefusedError.__name__
        reason = "refused_url" if is_refused else "unreachable"
        raise NotRecordedError(reason, is_final=is_refused)
    if not 200 <= response.status < 300:
        is_final = response.status < 500 and response.status != _TOO_MANY_REQUESTS
        reason = _REASONS.get(response.status, "failed" if is_final else "unreachable")
        raise NotRecordedError(reason, is_final=is_final)
    return parse_object(response.body)


def basic_login(username: str, password: str) -> dict[str, str]:
    """The header that logs in with user name and password (RFC 7617)."""
    return {
        "Authorization": f"Basic {base64.b64encode(f'{username}:{password}'.encode()).decode()}"
    }
