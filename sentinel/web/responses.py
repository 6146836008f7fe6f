"""Responses of the web server: JSON, compressed where the client accepts it, and cached bodies."""

from __future__ import annotations

import gzip
import json
from html import escape
from typing import Any

from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import HTMLResponse, PlainTextResponse, Response
from starlette.status import HTTP_404_NOT_FOUND

from sentinel.model.json_safe import json_safe

JSON_TYPE = "application/json"
_ERROR_PAGE = """\
<!doctype html>
<html lang="en">
<head>
  <meta charset="utf-8">
  <meta name="viewport" content="width=device-width, initial-scale=1">
  <meta name="color-scheme" content="light dark">
  <title>{title}: sentinel</title>
  <link rel="stylesheet" href="{root}static/style.css">
  <link rel="icon" href="data:,">
</head>
<body>
  <header class="topbar">
    <div class="name"><a class="crumb" href="{root}">Runs</a><h1>{title}</h1></div>
  </header>
  <main class="page"><p>{text}</p></main>
</body>
</html>
"""
MIN_COMPRESSED_BYTES = 16_384
"""Smaller answers are sent as they are."""
REVALIDATED = "no-cache"
"""The client may store the answer, but asks each time whether it changed."""
IMMUTABLE = "private, max-age=31536000, immutable"


class EncodedJson(str):
    """Data that is JSON already."""

    __slots__ = ()


class RequestError(Exception):
    """A request that is refused: HTTP status and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


async def answer_error(request: Request, error: Exception) -> Response:
    """An HTTPException: a page with a way back for a browser that opens a page, else its text."""
    assert isinstance(error, HTTPException)
    if "text/html" not in request.headers.get("accept", ""):
        return PlainTextResponse(error.detail, error.status_code, error.headers)
    # A proxy may add a prefix to the path, but takes none of its folders away.
    root = "../" * (request.url.path.count("/") - 1) or "./"
    title = "Not found" if error.status_code == HTTP_404_NOT_FOUND else "Not available"
    page = _ERROR_PAGE.format(root=root, title=title, text=escape(error.detail))
    return HTMLResponse(page, error.status_code, error.headers)


async def answer_refusal(request: Request, error: Exception) -> Response:
    """A RequestError: its sentence as `error`."""
    assert isinstance(error, RequestError)
    return json_response(request, {"error": str(error)}, error.status)


def json_response(request: Request, data: Any, status: int = 200) -> Response:
    """The data as JSON, see `json_text`."""
    return body_response(request, json_text(data).encode(), JSON_TYPE, status=status)


def json_text(data: Any) -> str:
    """The data as JSON; NaN and infinity are texts."""
    if isinstance(data, EncodedJson):
        return data
    try:
        return json.dumps(data, allow_nan=False, separators=(",", ":"))
    except ValueError:
        return json.dumps(json_safe(data), allow_nan=False, separators=(",", ":"))


def body_response(  # noqa: PLR0913 - what a response consists of
    request: Request,
    body: bytes,
    content_type: str,
    *,
    status: int = 200,
    headers: dict[str, str] | None = None,
    compressed_from: int = MIN_COMPRESSED_BYTES,
) -> Response:
    """The body, compressed if it has so many bytes and the client accepts that."""
    headers = {"content-type": content_type, **(headers or {})}
    if len(body) >= compressed_from and accepts_gzip(request):
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
