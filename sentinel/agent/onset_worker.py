"""Estimates the onsets of incidents in a background thread, in which a process may take its time.

Neither the agent's loop nor a notification waits for it: the loop polls for the answers, which are
records of the run and go through the pipeline and the journal like any other.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterable, Iterator, Sequence
from queue import Empty, SimpleQueue

from sentinel.model.incident import Onset
from sentinel.pipeline.onset_request import OnsetRequest

log = logging.getLogger(__name__)

Answer = tuple[OnsetRequest, Onset | None]
"""A request, and the onset if there is a clear one."""


class OnsetWorker:
    """Estimates the onsets of incidents; the first one starts the thread.

    `estimate` gets the requests that wait and returns the onset for each, None if there is none;
    `cancel` makes it return soon.
    """

    def __init__(
        self,
        estimate: Callable[[Sequence[OnsetRequest]], Sequence[Onset | None]],
        cancel: Callable[[], None] = lambda: None,
    ) -> None:
        self._estimate, self._cancel = estimate, cancel
        self._queue: SimpleQueue[OnsetRequest | None] = SimpleQueue()
        self._answers: SimpleQueue[Answer] = SimpleQueue()
        self._open: set[str] = set()
        self._thread: threading.Thread | None = None
        self._is_stopped = False

    @property
    def is_busy(self) -> bool:
        """Whether an estimate is under way, or was not polled yet."""
        return bool(self._open)

    def enqueue(self, requests: Iterable[OnsetRequest]) -> None:
        """Queue the requests whose incidents are not queued yet. Never blocks."""
        new = [request for request in requests if request.incident not in self._open]
        self._open.update(request.incident for request in new)
        for request in new:
            self._queue.put(request)
        if new and self._thread is None:
            self._thread = threading.Thread(
                target=self._run_thread, name="onset-worker", daemon=True
            )
            self._thread.start()

    def poll(self) -> Iterator[Answer]:
        """The answers since the last call."""
        while True:
            try:
                request, onset = self._answers.get_nowait()
            except Empty:
                return
            self._open.discard(request.incident)
            yield request, onset

    def stop(self, timeout: float) -> None:
        """Cancel the estimate that is under way and stop the thread, within `timeout` seconds.

        The next agent queues again what has no answer.
        """
        if self._thread is not None:
            self._is_stopped = True
            self._queue.put(None)
            self._cancel()
            self._thread.join(timeout)

    def _run_thread(self) -> None:
        while not self._is_stopped:
            requests = [request for request in self._pop_waiting() if request is not None]
            try:
                onsets = self._estimate(requests) if requests else ()
            except Exception:
                if self._is_stopped:
                    return
                log.exception("Onsets cannot be estimated; those of the detectors stay")
                onsets = [None] * len(requests)
            for answer in zip(requests, onsets, strict=True):
                self._answers.put(answer)

    def _pop_waiting(self) -> list[OnsetRequest | None]:
        """Wait for a request; that one and those behind it."""
        waiting = [self._queue.get()]
        while not self._queue.empty():
            waiting.append(self._queue.get())
        return waiting
