"""Serves a run with one agent after another: an agent whose storage fails is replaced."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from threading import Event as Flag

from sentinel.agent.main import Agent
from sentinel.store.storage_monitor import StorageFailure, StorageMonitor

log = logging.getLogger(__name__)

MAX_REPLACEMENTS = 20
"""Agents that are replaced in a row; a supervisor starts the process again after that."""
STABLE_AFTER_SECONDS = 600.0
"""Time after which an agent whose storage fails is the first one in a row."""
MAX_DELAY_SECONDS = 60.0
"""Longest delay before an agent is replaced; the first one is replaced at once."""


class RunService:
    """Serves one run in this process, whatever becomes of its storage.

    `build_agent` gets the state of the storage, which all agents share, and the agent that failed,
    if any.
    """

    def __init__(
        self,
        build_agent: Callable[[StorageMonitor, Agent | None], Agent],
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._build_agent, self._clock = build_agent, clock
        self._storage = StorageMonitor()
        self._stop_requested = Flag()
        self._stop_signal = ""
        self._failures, self._built_at = 0, 0.0
        self.agent: Agent | None = None
        """The agent that serves; before the first is built, None."""

    def prepare(self) -> Agent:
        """Build the agent. Raises what `build_agent` raises, except failures of the storage."""
        while True:
            try:
                self._built_at = self._clock()
                self.agent = self._build_agent(self._storage, self.agent)
            except StorageFailure as failure:
                self._wait_after(failure)
            else:
                if self._stop_requested.is_set():
                    self.agent.request_stop(self._stop_signal)
                return self.agent

    def serve(self) -> None:
        """Serve the run until it is finished or a stop is requested.

        Raises StorageFailure if `MAX_REPLACEMENTS` agents in a row failed.
        """
        agent = self.agent or self.prepare()
        while True:
            try:
                agent.serve()
            except StorageFailure as failure:
                self._wait_after(failure)
                agent = self.prepare()
            else:
                return

    def request_stop(self, signal_name: str) -> None:
        """Stop as `Agent.request_stop` does; callable from a signal handler."""
        self._stop_signal = signal_name
        self._stop_requested.set()
        if self.agent is not None:
            self.agent.request_stop(signal_name)

    def _wait_after(self, failure: StorageFailure) -> None:
        """Log the failure and wait, longer after each one of a row. Raises it after too many."""
        log.error("The storage failed (%s)", failure, exc_info=failure.error)
        if self._clock() - self._built_at >= STABLE_AFTER_SECONDS:
            self._failures = 0
        self._failures += 1
        if self._failures > MAX_REPLACEMENTS:
            raise failure
        if self._failures > 1:
            self._stop_requested.wait(min(2.0 ** (self._failures - 2), MAX_DELAY_SECONDS))
