"""Reads the provenance of a run in a background thread, once for each attempt.

Repositories and packages may be on a file server that does not answer: neither the agent's loop nor
the training waits for it.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from queue import Empty, SimpleQueue
from threading import Event as Flag
from threading import Thread

from sentinel.live.provenance.run_provenance import ProvenanceReader

POLL_SECONDS = 0.25
PACKAGE_RETRY_SECONDS = (2.0, 10.0, 60.0)
"""Waits for a training that has not loaded torch yet."""


class ProvenanceWorker:
    """Passes the metadata that `reader` finds to `store`, in the thread of `poll`.

    `attempt` is the newest attempt, `rank_pids` the pids of its running ranks, of which the lowest
    one is read.
    """

    def __init__(
        self,
        reader: ProvenanceReader,
        attempt: Callable[[], int],
        rank_pids: Callable[[], Mapping[int, int]],
        store: Callable[[Mapping[str, str]], None],
    ) -> None:
        self._reader, self._attempt, self._rank_pids = reader, attempt, rank_pids
        self._store = store
        self._found: SimpleQueue[dict[str, str]] = SimpleQueue()
        self._stopping = Flag()
        self._thread: Thread | None = None
        self._read_attempt, self._polled_at = -1, 0.0

    def poll(self) -> None:
        """Store what was found, and begin to read a new attempt."""
        now = time.monotonic()
        if now - self._polled_at < POLL_SECONDS:
            return
        self._polled_at = now
        self._store_found()
        if self._attempt() == self._read_attempt:
            return
        pids = self._rank_pids()
        if pids and (self._thread is None or not self._thread.is_alive()):
            self._read_attempt = self._attempt()
            self._thread = Thread(
                target=self._read, args=[pids[min(pids)]], name="sentinel-provenance", daemon=True
            )
            self._thread.start()

    def stop(self, timeout: float = 1.0) -> None:
        """End the thread."""
        self._stopping.set()
        if self._thread is not None:
            self._thread.join(timeout)

    def _read(self, pid: int) -> None:
        has_torch = False
        for values in self._reader.read(pid, self._stopping):
            self._found.put(values)
            has_torch |= "torch" in values
        for seconds in PACKAGE_RETRY_SECONDS:
            if has_torch or self._stopping.wait(seconds):
                return
            values = self._reader.read_packages(pid)
            has_torch = "torch" in values
            self._found.put(values)

    def _store_found(self) -> None:
        values: dict[str, str] = {}
        while True:
            try:
                values |= self._found.get_nowait()
            except Empty:
                break
        if values:
            self._store(values)
