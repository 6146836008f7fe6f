"""Responses of the web server: JSON, compressed where the client accepts it, and cached bodies."""

from __future__ import annotations

import gzip
import json
from typing import Any

from starlette.requests import Request
from starlette.responses import Response

from sentinel.model.json_safe import json_safe

JSON_TYPE = "application/json"
MIN_COMPRESSED_BYTES = 16_384
"""Smaller answers are sent as they are."""
REVALIDATED = "no-cache"
"""The client may store the answer, but asks each time whether it changed."""
IMMUTABLE = "private, max-age=31536000, immutable"


def json_response(request: Request, data: Any, status: int = 200) -> Response:
    """The data as JSON, see `json_text`."""
    return body_response(request, json_text(data).encode(), JSON_TYPE, status=status)


def json_text(data: Any) -> str:
    """The data as JSON; NaN and infinity are texts."""
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(json_safe(data), allow_nan=False, separators=(",", ":"))


def body_response(
    request: Request,
    body: bytes,
    content_type: str,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
) -> Response:
    """The body, compressed if it is large and the client accepts that."""
    headers = {"content-type": content_type, **(headers or {})}
    if len(body) >= MIN_COMPRESSED_BYTES and accepts_gzip(request):
        body = gzip.compress(body, 1, mtime=0)
        headers |= {"content-encoding": "gzip", "vary": "accept-encoding"}
    return Response(body, status, headers)


def accepts_gzip(request: Request) -> bool:
    """Whether the client accepts an answer that is compressed with gzip."""
    accepted = request.headers.get("accept-encoding", "").lower().split(",")
    parts = (each.partition(";") for each in accepted)
    return any(name.strip() == "gzip" and rest.strip() != "q=0" for name, _, rest in parts)


def is_unchanged(request: Request, etag: str) -> bool:
    """Whether the client has the answer with that entity tag already."""
    given = ",".join(request.headers.getlist("if-none-match")).split(",")
    return any(tag.strip().removeprefix("W/") in {"*", etag} for tag in given)
