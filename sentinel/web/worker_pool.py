"""Threads that read files for the web server: a disk that hangs stops only what needs it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import suppress
from queue import SimpleQueue
from threading import Lock, Thread
from typing import Any, TypeVar

Answer = TypeVar("Answer")

READ_TIMEOUT_SECONDS = 60.0
"""Longest wait for one answer."""


class WorkerPool:
    """At most `size` daemon threads, started as they are needed.

    A call longer than `READ_TIMEOUT_SECONDS` keeps its thread, but its answer is dropped.
    """

    def __init__(self, size: int = 8) -> None:
        self._size, self._timeout = size, READ_TIMEOUT_SECONDS
        self._calls: SimpleQueue[tuple[Callable[[], Any], asyncio.Future[Any]]] = SimpleQueue()
        self._lock = Lock()
        self._thread_count, self._unfinished = 0, 0

    async def run(self, call: Callable[[], Answer]) -> Answer:
        """What `call` returns, or raises. Raises TimeoutError."""
        future: asyncio.Future[Answer] = asyncio.get_running_loop().create_future()
        with self._lock:
            self._unfinished += 1
            is_new = self._thread_count < min(self._unfinished, self._size)
            self._thread_count += is_new
        self._calls.put((call, future))
        if is_new:
            Thread(target=self._work, name="sentinel-web-reader", daemon=True).start()
        return await asyncio.wait_for(future, self._timeout)

    def _work(self) -> None:
        while True:
            call, future = self._calls.get()
            if not future.cancelled():
                self._answer(call, future)
            with self._lock:
                self._unfinished -= 1

    @staticmethod
    def _answer(call: Callable[[], Any], future: asyncio.Future[Any]) -> None:
        setter: Callable[[Any], None]
        try:
            answer, setter = call(), future.set_result
        except Exception as error:
            answer, setter = error, future.set_exception

        def set_answer() -> None:
            if not future.done():
                setter(answer)

        # The server may have stopped meanwhile.
        with suppress(RuntimeError):
            future.get_loop().call_soon_threadsafe(set_answer)
