"""Patience: how long a connection may take over saying what it wants."""

from __future__ import annotations

import asyncio
from typing import Any

from uvicorn.protocols.http.h11_impl import H11Protocol


class TimeoutH11Protocol(H11Protocol):
    """HTTP/1.1, hung up on `seconds` after a request was begun, or awaited, but not finished.

    Without it, a few hundred connections that never say anything keep everybody else out.
    """

    timeout_seconds = 10.0
    _last_timed_cycle: Any = None

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        """Begin to wait for the first request."""
        super().connection_made(transport)
        self.loop.call_later(self.timeout_seconds, self._abort_if_unfinished, None)

    def data_received(self, data: bytes) -> None:
        """Begin to wait for the rest of a later request, where this was only its beginning."""
        super().data_received(data)
        last = self.cycle
        if last is not None and last.response_complete and last is not self._last_timed_cycle:
            self._last_timed_cycle = last
            self.loop.call_later(self.timeout_seconds, self._abort_if_unfinished, last)

    def _abort_if_unfinished(self, last: Any) -> None:
        # The same request is still the last one: no other has been finished meanwhile.
        if self.cycle is last:
            self.transport.abort()
