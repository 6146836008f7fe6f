"""HTTP server of an agent: `/metrics`, the web page and its JSON, in a thread of its own."""

from __future__ import annotations

import asyncio
import errno
import json
import logging
import socket
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from importlib.resources import files
from threading import Thread
from typing import Any

import uvicorn
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder
from starlette.applications import Starlette
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import Route
from starlette.types import ASGIApp
from uvicorn.protocols.http.h11_impl import H11Protocol

from sentinel.config.url_policy import is_loopback
from sentinel.model.json_safe import json_safe
from sentinel.web.auth import HEALTH_PATH, AuthMiddleware
from sentinel.web.runbooks import runbook_index, runbook_page

log = logging.getLogger(__name__)

MAX_CONNECTIONS = 256
"""Maximum number of connections at a time; further ones are answered 503."""

DEFAULT_SAMPLE_LIMIT = 20
"""Number of samples that `/api/samples` returns without `limit`."""
_MAX_NUMBER_DIGITS = 18
"""Maximum length of a number in a query: it fits into a 64-bit integer."""

_STATIC_FILES = {
    "/": ("index.html", "text/html; charset=utf-8"),
    "/app.js": ("app.js", "text/javascript; charset=utf-8"),
    "/nodes.js": ("nodes.js", "text/javascript; charset=utf-8"),
    "/style.css": ("style.css", "text/css; charset=utf-8"),
}

StateReader = Callable[[], dict[str, Any]]
IncidentsReader = Callable[[], list[dict[str, Any]]]
SamplesReader = Callable[[int | None, int], list[dict[str, Any]]]


def no_samples(_step: int | None, _limit: int) -> list[dict[str, Any]]:
    """An empty list, for a run without stored samples."""
    return []


@dataclass
class WebServer:
    """HTTP server of one agent, in a daemon thread.

    `state`, `incidents` and `samples` (of a step, or None for all, and the maximum number) are
    called in worker threads, several at a time. The port is the first free one of `port_tries` from
    `port` on; port 0 lets the system choose. `hosts` are those of `AuthMiddleware`. Raises
    ValueError if `host` is not a loopback address and there is no `token`.
    """

    registry: CollectorRegistry
    state: StateReader
    incidents: IncidentsReader
    samples: SamplesReader = no_samples
    host: str = "127.0.0.1"
    port: int = 0
    port_tries: int = 100
    token: str = field(default="", repr=False)
    hosts: Collection[str] = ()

    def __post_init__(self) -> None:
        if not is_loopback(self.host) and not self.token:
            message = f"The web host {self.host!r} is reachable from other machines: "
            raise ValueError(f"{message}set a token, or listen on 127.0.0.1.")
        self._server = uvicorn.Server(_uvicorn_config(build_app(self)))
        self._thread: Thread | None = None

    def start(self) -> int:
        """Listen, and return the port. Raises OSError if no port of the range is free."""
        listening = bind_free_port(self.host, self.port, self.port_tries)
        port: int = listening.getsockname()[1]
        self._thread = Thread(
            target=self._server.run, args=([listening],), name="sentinel-web", daemon=True
        )
        self._thread.start()
        return port

    def stop(self) -> None:
        """Close the connections and wait for the thread, for at most 5 seconds."""
        self._server.should_exit = True
        if self._thread is not None:
            self._thread.join(timeout=5.0)


def bind_free_port(host: str, port: int, tries: int) -> socket.socket:
    """A socket that listens on the first free port of `tries` from `port` on.

    Raises OSError if none is free, and at once for any other error, such as a foreign address.
    """
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    for candidate in range(port, min(port + max(tries, 1), 65536)):
        listening = socket.socket(family)
        listening.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            listening.bind((host, candidate))
            listening.listen(1024)
        except OSError as error:
            listening.close()
            if error.errno not in {errno.EADDRINUSE, errno.EACCES}:
                raise
        else:
            return listening
    raise OSError(errno.EADDRINUSE, f"No free port on {host} from {port} on ({tries} tried)")


def build_app(server: WebServer) -> ASGIApp:
    """The ASGI app with all routes, behind the authentication."""

    def metrics(request: Request) -> Response:
        body, content_type = _encode_metrics(request.headers.get("accept", ""), server.registry)
        return Response(body, headers={"content-type": content_type})

    async def healthy(_: Request) -> Response:
        return PlainTextResponse("ok\n")

    def ready(_: Request) -> Response:
        try:
            server.state()
        except Exception:
            log.exception("Cannot read the state of the run")
            return PlainTextResponse("cannot read the state of the run\n", 503)
        return PlainTextResponse("ok\n")

    def samples(request: Request) -> Response:
        try:
            step, limit = (_parse_whole_number(request, name) for name in ("step", "limit"))
        except ValueError as error:
            return PlainTextResponse(f"{error}\n", 400)
        return _json_response(
            server.samples(step, DEFAULT_SAMPLE_LIMIT if limit is None else limit)
        )

    routes = [
        Route("/metrics", metrics),
        Route(HEALTH_PATH, healthy),
        Route("/-/ready", ready),
        Route("/api/run", lambda _: _json_response(server.state())),
        Route("/api/incidents", lambda _: _json_response(server.incidents())),
        Route("/api/samples", samples),
        Route("/runbooks/", runbook_index),
        Route("/runbooks/{name}", runbook_page),
        *(Route(path, _static_route(*file)) for path, file in _STATIC_FILES.items()),
    ]
    return AuthMiddleware(Starlette(routes=routes), server.token, (server.host, *server.hosts))


class TimeoutH11Protocol(H11Protocol):
    """HTTP/1.1 that closes a connection whose request is incomplete after `timeout_seconds`.

    Without it, idle connections could use up `MAX_CONNECTIONS` and lock out all other clients.
    """

    timeout_seconds = 10.0
    _last_timed_cycle: Any = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Start the timeout of the first request."""
        super().connection_made(transport)
        self.loop.call_later(self.timeout_seconds, self._abort_if_unfinished, None)

    def data_received(self, data: bytes) -> None:
        """Start the timeout of a later request that is still incomplete."""
        super().data_received(data)
        last = self.cycle
        if last is not None and last.response_complete and last is not self._last_timed_cycle:
            self._last_timed_cycle = last
            self.loop.call_later(self.timeout_seconds, self._abort_if_unfinished, last)

    def _abort_if_unfinished(self, last: Any) -> None:
        # If the last cycle is the same one, no request was completed since the timeout started.
        if self.cycle is last:
            self.transport.abort()


def _uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=TimeoutH11Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        limit_concurrency=MAX_CONNECTIONS,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=16_384,
    )


def _parse_whole_number(request: Request, name: str) -> int | None:
    text = request.query_params.get(name, "")
    if text and not (text.isdecimal() and len(text) <= _MAX_NUMBER_DIGITS):
        raise ValueError(f"{name} must be a whole number, such as {name}=20.")
    return int(text) if text else None


def _encode_metrics(accept: str, registry: CollectorRegistry) -> tuple[bytes, str]:
    try:
        encode, content_type = choose_encoder(accept)
        return encode(registry), content_type
    except (TypeError, ValueError):
        # A malformed Accept header must not fail the scrape.
        encode, content_type = choose_encoder("")
        return encode(registry), content_type


def _static_route(name: str, content_type: str) -> Callable[[Request], Response]:
    body = files("sentinel.web").joinpath("static", name).read_bytes()
    return lambda _: Response(body, headers={"content-type": content_type})


def _json_response(data: Any) -> Response:
    body = json.dumps(json_safe(data), allow_nan=False)
    return Response(body, headers={"content-type": "application/json"})
