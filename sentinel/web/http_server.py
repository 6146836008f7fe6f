"""Routes of a web server, and uvicorn with our limits, which answers their requests."""

from __future__ import annotations

import asyncio
import logging
import socket
from collections.abc import Callable
from contextlib import suppress
from math import inf
from secrets import token_urlsafe
from ssl import SSLContext
from threading import Lock
from time import monotonic
from typing import TYPE_CHECKING, Protocol
from urllib.parse import SplitResult, urlsplit

import uvicorn
from starlette.applications import Starlette
from starlette.exceptions import HTTPException
from starlette.requests import Request
from starlette.responses import PlainTextResponse, Response
from starlette.routing import BaseRoute, Route
from starlette.types import ASGIApp

from sentinel.config.web_config import WebConfigFile
from sentinel.web.auth import HEALTH_PATH, MAX_HEADER_BYTES, READY_PATH, AuthMiddleware
from sentinel.web.connections import ConnectionAcceptor, TimedH11Protocol
from sentinel.web.responses import RequestError, answer_error, answer_refusal
from sentinel.web.runbooks import runbook_index, runbook_page
from sentinel.web.service_discovery import answer_targets

if TYPE_CHECKING:
    from sentinel.web.server import WebServer

log = logging.getLogger(__name__)

MAX_READY_SECONDS, MAX_HEALTHY_SECONDS = 10.0, 60.0
"""Time without a turn of the main loop after which `/-/ready` and `/-/healthy` fail.

A turn takes about 0.1 s; on a starved machine, with much to store, it takes seconds.
"""
CHECK_SECONDS = 1.0
"""Interval between two checks for `/-/ready`."""
_TICK_SECONDS = 1.0
"""Interval between checks of the web configuration for changes. Uvicorn's own ticks of 0.1 s take
more of a processor than all else in a server without requests."""


class Site(Protocol):
    """What a server serves."""

    def routes(self, write_token: str) -> list[BaseRoute]:
        """The routes. Requests that change something need `write_token`."""

    def check(self) -> None:
        """Raise what prevents answers; the server is not ready then."""

    def close(self) -> None:
        """End the streams of events; called in the event loop."""


def make_server(server: WebServer) -> HttpServer:
    """The uvicorn server of the site of `server`, for its socket."""
    site = server.make_site()
    config = _uvicorn_config(_build_app(server, site))
    return HttpServer(config, server.web_config_reader, site.close)


def _build_app(server: WebServer, site: Site) -> ASGIApp:
    """The ASGI app with all routes, behind the authentication."""

    async def healthy(_: Request) -> Response:
        return _probe_response(server.loop_seconds(), MAX_HEALTHY_SECONDS)

    readable = _Readable(site.check)

    def ready(_: Request) -> Response:
        if not readable.is_true():
            return PlainTextResponse("cannot read the state of the run\n", 503)
        return _probe_response(server.loop_seconds(), MAX_READY_SECONDS)

    write_token, public_url = token_urlsafe(32), urlsplit(server.public_url)
    routes = [
        Route(HEALTH_PATH, healthy),
        Route(READY_PATH, ready),
        Route("/sd", answer_targets),
        Route("/runbooks/", runbook_index),
        Route("/runbooks/{name}", runbook_page),
        *site.routes(write_token),
    ]
    handlers = {HTTPException: answer_error, RequestError: answer_refusal}
    router = Starlette(routes=routes, exception_handlers=handlers)
    # The address of the redirection would be that of this server, behind a proxy too.
    router.router.redirect_slashes = False
    return AuthMiddleware(
        router,
        server.token,
        [host for host in (server.host, public_url.hostname) if host],
        own_token=server.own_token,
        write_token=write_token,
        origins=[_origin(public_url)] if public_url.hostname else [],
        web_config=server.web_config,
    )


class _Readable:
    """Whether `check` raises nothing. It is called once in `CHECK_SECONDS`: there is no login."""

    def __init__(self, check: Callable[[], None]) -> None:
        self._check, self._lock = check, Lock()
        self._checked_at, self._is_true = -inf, False

    def is_true(self) -> bool:
        """The last result; for any thread."""
        with self._lock:
            if monotonic() - self._checked_at >= CHECK_SECONDS:
                try:
                    self._check()
                except Exception:
                    log.exception("The server is not ready")
                    self._is_true = False
                else:
                    self._is_true = True
                self._checked_at = monotonic()
            return self._is_true


def _probe_response(loop_seconds: float, limit: float) -> Response:
    if loop_seconds <= limit:
        return PlainTextResponse("ok\n")
    return PlainTextResponse(f"the main loop has not turned for {loop_seconds:.0f} s\n", 503)


def _origin(url: SplitResult) -> str:
    """The `Origin` of requests from pages under `url`, as browsers write it."""
    host = f"[{url.hostname}]" if ":" in str(url.hostname) else url.hostname
    is_default = url.port in (None, {"http": 80, "https": 443}.get(url.scheme))
    return f"{url.scheme}://{host}" if is_default else f"{url.scheme}://{host}:{url.port}"


class HttpServer(uvicorn.Server):
    """Accepts connections with `ConnectionAcceptor`, over TLS if there is a certificate.

    `end_streams` is called before it waits for its connections to end.
    """

    def __init__(
        self,
        config: uvicorn.Config,
        web_config: WebConfigFile | None,
        end_streams: Callable[[], object],
    ) -> None:
        super().__init__(config)
        self._web_config, self._end_streams = web_config, end_streams
        self._acceptors: list[ConnectionAcceptor] = []
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ending = asyncio.Event()

    def end(self) -> None:
        """End the server soon. For any thread."""
        self.should_exit = True
        if self._loop is not None:
            with suppress(RuntimeError):
                # The loop has ended already.
                self._loop.call_soon_threadsafe(self._ending.set)

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Accept connections of `sockets`, and follow changes of the web configuration."""
        self._acceptors = [
            ConnectionAcceptor(listener, self._make_protocol, self._tls_context)
            for listener in sockets or ()
        ]
        # Not asyncio servers, but with the methods that are called.
        self.servers = self._acceptors  # type: ignore[assignment]
        self._loop = asyncio.get_running_loop()
        self.started = True

    async def main_loop(self) -> None:
        """Update what every answer has, and the web configuration, until the server ends."""
        while not await self.on_tick(0):
            if self._web_config is not None:
                # A file can be on a slow file system.
                await asyncio.to_thread(self._web_config.reload)
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ending.wait(), _TICK_SECONDS)

    async def shutdown(self, sockets: list[socket.socket] | None = None) -> None:
        """End the streams, then as every server; close what is open after the graceful time."""
        self._end_streams()
        await super().shutdown(sockets)
        for acceptor in self._acceptors:
            await acceptor.abort()

    def _make_protocol(self) -> TimedH11Protocol:
        return TimedH11Protocol(self.config, self.server_state, {})

    def _tls_context(self) -> SSLContext | None:
        return None if self._web_config is None else self._web_config.tls_context


def _uvicorn_config(app: ASGIApp) -> uvicorn.Config:
    # Malformed requests would fill the log.
    logging.getLogger("uvicorn.error").setLevel(logging.ERROR)
    return uvicorn.Config(
        app,
        loop="asyncio",
        http=TimedH11Protocol,
        ws="none",
        lifespan="off",
        log_config=None,
        access_log=False,
        server_header=False,
        proxy_headers=False,
        timeout_graceful_shutdown=2,
        h11_max_incomplete_event_size=MAX_HEADER_BYTES,
    )
