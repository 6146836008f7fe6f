"""The tools by streamable HTTP at `/mcp` of `sentinel serve`, behind its authentication."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from starlette.responses import PlainTextResponse
from starlette.routing import BaseRoute, Route
from starlette.types import Message, Receive, Scope, Send

from sentinel.web.auth import CALL_PATH
from sentinel.web.home.home_site import RunSource
from sentinel.web.http_server import Site

if TYPE_CHECKING:
    from mcp.server.streamable_http_manager import StreamableHTTPSessionManager


log = logging.getLogger(__name__)


class McpSite:
    """A site with the tools for `runs` beside it. Each request stands for itself: no sessions.

    With `allow_actions`, also those that change something. The package `mcp` is imported at the
    first request.
    """

    def __init__(self, site: Site, runs: RunSource, *, allow_actions: bool = False) -> None:
        self._site = site
        self._endpoint = _Endpoint(lambda: _make_manager(runs, allow_actions=allow_actions))

    def routes(self, write_token: str) -> list[BaseRoute]:
        """The routes of the site, and that of the tools."""
        return [*self._site.routes(write_token), Route(CALL_PATH, self._endpoint, methods=["POST"])]

    def check(self) -> None:
        """As the site."""
        self._site.check()

    def close(self) -> None:
        """End the calls, and what the site ends."""
        self._endpoint.close()
        self._site.close()


class _Endpoint:
    """Passes requests to the manager that `make` returns, from the first of them on.

    A call ends when its client has gone.
    """

    def __init__(self, make: Callable[[], StreamableHTTPSessionManager]) -> None:
        self._make = make
        self._manager: asyncio.Future[StreamableHTTPSessionManager] | None = None
        self._runner: asyncio.Task[None] | None = None
        self._calls: set[asyncio.Task[None]] = set()

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        if self._manager is None:
            self._manager = asyncio.get_running_loop().create_future()
            self._runner = asyncio.create_task(self._run(self._manager))
        try:
            manager = await asyncio.shield(self._manager)
        except ImportError as error:
            answer = PlainTextResponse(f"The package mcp is too old: {error}\n", 501)
        except Exception as error:  # noqa: BLE001 - of a later version of the package
            name = type(error).__name__
            answer = PlainTextResponse(f"The package mcp cannot be used: {name}.\n", 501)
        else:
            if await self._call(manager, scope, receive, send):
                return
            answer = PlainTextResponse("The call was ended.\n", 503)
        await answer(scope, receive, send)

    async def _call(
        self,
        manager: StreamableHTTPSessionManager,
        scope: Scope,
        receive: Receive,
        send: Send,
    ) -> bool:
        """Whether the manager has answered the request."""
        # The checks of all requests pass the body on as one message.
        messages, is_answered = [await receive()], False
        gone = asyncio.create_task(_receive(receive))

        async def receive_again() -> Message:
            return messages.pop() if messages else await asyncio.shield(gone)

        async def send_on(message: Message) -> None:
            nonlocal is_answered
            is_answered = True
            await send(message)

        call = asyncio.create_task(_handle(manager, scope, receive_again, send_on))
        self._calls.add(call)
        try:
            await asyncio.wait((call, gone), return_when=asyncio.FIRST_COMPLETED)
            if not is_answered:
                # The end of an answer is reported as one of the client, too.
                call.cancel()
            with suppress(asyncio.CancelledError):
                await call
        finally:
            self._calls.discard(call)
            gone.cancel()
        return is_answered

    async def _run(self, started: asyncio.Future[StreamableHTTPSessionManager]) -> None:
        try:
            manager = await asyncio.to_thread(self._make)
            async with manager.run():
                started.set_result(manager)
                await asyncio.Event().wait()
        except asyncio.CancelledError:
            # No request may wait for a start that was ended.
            started.cancel()
        except Exception as error:
            log.exception("The tools for coding agents cannot be served")
            if not started.done():
                started.set_exception(error)

    def close(self) -> None:
        """End the calls that are under way; called in the event loop."""
        for task in (self._runner, *self._calls):
            if task is not None:
                task.cancel()


async def _receive(receive: Receive) -> Message:
    return await receive()


async def _handle(
    manager: StreamableHTTPSessionManager, scope: Scope, receive: Receive, send: Send
) -> None:
    await manager.handle_request(scope, receive, send)


def _make_manager(runs: RunSource, *, allow_actions: bool) -> StreamableHTTPSessionManager:
    from mcp.server.transport_security import TransportSecuritySettings  # noqa: PLC0415 - optional

    from sentinel.mcp.server import make_server  # noqa: PLC0415 - imports that package

    server = make_server(runs, allow_actions=allow_actions)
    # The host is checked before all routes.
    unchecked = TransportSecuritySettings(enable_dns_rebinding_protection=False)
    server.streamable_http_app(
        json_response=True, stateless_http=True, transport_security=unchecked
    )
    return server.session_manager
