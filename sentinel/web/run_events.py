"""Server-sent events of one run: new rows, and the state when it changed.

One task per run reads for all its viewers. A stream begins with `start`, whose id is the row after
which it continues. A viewer that returns with the id of the last event it got continues there; one
that would have to read too much gets `reset` instead, and loads the page's data again.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from time import monotonic
from typing import TYPE_CHECKING

from sentinel.web.responses import json_text
from sentinel.web.worker_pool import WorkerPool

if TYPE_CHECKING:
    from sentinel.web.run_routes import RunView

log = logging.getLogger(__name__)

MAX_VIEWERS = 100
"""Number of streams that are open at a time, of all runs of the server."""
POLL_SECONDS = 0.2
STATE_SECONDS = 1.0
COMMENT_SECONDS = 15.0
"""Interval of the comments that keep a connection alive which has no events."""
MAX_ROWS_PER_EVENT = 5000
"""A viewer that lacks more rows gets `reset`."""
MAX_QUEUED_EVENTS = 50
"""A viewer that does not read as many events is disconnected; its browser connects again."""
_UNKNOWN_POSITION = -(2**62)
"""Too far from any row, so that what a viewer has is sent anew."""
RETRY_MS = 2000
"""Time after which a browser connects again."""


class TooManyViewersError(Exception):
    """`MAX_VIEWERS` streams are open."""


@dataclass(eq=False)
class Viewer:
    """One stream of a run, see `RunEvents.open`."""

    position: int
    """Id of the last row that it got."""
    mark: object = None
    """The change mark when it got that row."""
    state: bytes = b""
    """The last state that it got."""
    events: asyncio.Queue[bytes | None] = field(
        default_factory=lambda: asyncio.Queue(MAX_QUEUED_EVENTS)
    )

    def send(self, event: bytes | None) -> bool:
        """Queue an event, None to end the stream; whether there was room."""
        try:
            self.events.put_nowait(event)
        except asyncio.QueueFull:
            return False
        return True

    async def chunks(self) -> AsyncIterator[bytes]:
        """The bytes of the stream."""
        yield b"retry: %d\n\n" % RETRY_MS
        while (event := await self.events.get()) is not None:
            yield event


class OpenStreams:
    """The streams of a server that are open and the requests that wait, at most `MAX_VIEWERS`."""

    def __init__(self) -> None:
        self._viewers: set[Viewer] = set()
        self._waiting = 0
        self.is_closed = False

    def add(self, viewer: Viewer) -> None:
        """Add the stream of a viewer. Raises TooManyViewersError if there may be no further one."""
        self._check()
        self._viewers.add(viewer)

    def remove(self, viewer: Viewer) -> None:
        """Remove the stream of a viewer."""
        self._viewers.discard(viewer)

    @contextmanager
    def place(self) -> Iterator[None]:
        """The place of a request that waits. Raises TooManyViewersError."""
        self._check()
        self._waiting += 1
        try:
            yield
        finally:
            self._waiting -= 1

    def close(self) -> None:
        """End all streams, so that browsers connect again."""
        self.is_closed = True
        for viewer in [*self._viewers]:
            viewer.send(None)

    def _check(self) -> None:
        if len(self._viewers) + self._waiting >= MAX_VIEWERS:
            raise TooManyViewersError


@dataclass(eq=False)
class RunEvents:
    """The streams of one run. All methods run in the event loop of the server."""

    view: RunView
    pool: WorkerPool
    streams: OpenStreams
    _viewers: list[Viewer] = field(default_factory=list, init=False)
    _task: asyncio.Task[None] | None = field(default=None, init=False)

    @property
    def has_viewers(self) -> bool:
        """Whether any stream is open."""
        return bool(self._viewers)

    def open(self, after: int) -> Viewer:
        """A stream with the rows after that one, which has a place until it is closed.

        Raises TooManyViewersError.
        """
        viewer = Viewer(after)
        self.streams.add(viewer)
        self._viewers.append(viewer)
        viewer.send(_event("start", json_text({"last_id": after}), after))
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._produce())
        return viewer

    def close(self, viewer: Viewer) -> None:
        """Give the place of a stream back, whether it was read or not."""
        self.streams.remove(viewer)
        if viewer in self._viewers:
            self._viewers.remove(viewer)

    def reset_viewers(self) -> None:
        """Let all viewers load the data again: the rows are others now. From any thread."""
        for viewer in self._viewers.copy():
            viewer.position = _UNKNOWN_POSITION

    async def _produce(self) -> None:
        state_at = comment_at = -COMMENT_SECONDS
        while self._viewers:
            try:
                now = monotonic()
                # Viewers join while others are served, so each has its own place.
                if now - state_at >= STATE_SECONDS or not all(v.state for v in self._viewers):
                    state_at = now
                    await self._send_state()
                mark = await self.pool.run(self.view.change_mark)
                if any(each.mark != mark for each in self._viewers):
                    await self._send_rows(mark)
                if now - comment_at >= COMMENT_SECONDS:
                    comment_at = now
                    self._send(b": alive\n\n")
                if self.view.ended and all(viewer.state for viewer in self._viewers):
                    self._send(_event("end", "{}"))
                    for viewer in self._viewers:
                        viewer.send(None)
                    return
            except Exception as error:
                # The next try may succeed: a file server may answer again.
                log.debug("The events of a run cannot be read: %s", error)
                await asyncio.sleep(STATE_SECONDS)
            await asyncio.sleep(POLL_SECONDS)

    async def _send_state(self) -> None:
        event = _event("run", json_text(await self.pool.run(self.view.read_state)))
        for viewer in self._viewers.copy():
            if viewer.state != event:
                viewer.state = event
                self._send_to(viewer, event)

    async def _send_rows(self, mark: object) -> None:
        """Send new rows; viewers that have the same rows share one reading and one event."""
        newest = await self.pool.run(self.view.last_row)
        answers: dict[int, tuple[int, bytes]] = {}
        for viewer in self._viewers.copy():
            position = viewer.position
            if position not in answers:
                answers[position] = await self._read_rows(position, newest)
            last, event = answers[position]
            if viewer.position != position:
                # `reset_viewers` was called meanwhile: these rows are of the former data.
                continue
            viewer.position, viewer.mark = last, mark
            if event:
                self._send_to(viewer, event)

    async def _read_rows(self, position: int, newest: int) -> tuple[int, bytes]:
        """The id of the newest row after that one, and the event with all rows in between."""
        if position == newest:
            return newest, b""
        # The ids of another database may be lower, after the first one was damaged.
        if 0 <= newest - position <= MAX_ROWS_PER_EVENT:
            rows = await self.pool.run(
                lambda: self.view.reader.rows_since(position, MAX_ROWS_PER_EVENT)
            )
            last = int(rows["last_id"])
            return last, _event("rows", json_text(rows), last)
        return newest, _event("reset", json_text({"last_id": newest}), newest)

    def _send(self, event: bytes) -> None:
        for viewer in self._viewers.copy():
            self._send_to(viewer, event)

    def _send_to(self, viewer: Viewer, event: bytes) -> None:
        if viewer.send(event):
            return
        # It does not read: its queue is emptied, so that there is room for the end.
        while not viewer.events.empty():
            viewer.events.get_nowait()
        viewer.send(None)
        if viewer in self._viewers:
            self._viewers.remove(viewer)


def _event(name: str, data: str, number: int | None = None) -> bytes:
    head = f"id: {number}\n" if number is not None else ""
    return f"{head}event: {name}\ndata: {data}\n\n".encode()
