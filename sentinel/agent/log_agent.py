"""An agent that follows a log file in the place of rings."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from pathlib import Path

from sentinel.agent.main import Agent, RecordSource
from sentinel.agent.processor import ResultConsumer
from sentinel.config.settings import Settings
from sentinel.readers.follow import LogFollower
from sentinel.store.storage_monitor import StorageMonitor
from sentinel.transport.ring import ReadPosition


class LogAgent(Agent):
    """Serves the run whose log is at `path`, which need not exist yet.

    `consumer` is updated with every result. `on_notice` is called with each new notice of the log
    reader. `max_steps` is the last step of the run; 0 if only the log knows it. Raises what `Agent`
    raises.
    """

    def __init__(  # noqa: PLR0913 - an agent, and what it follows
        self,
        run: str,
        path: Path,
        settings: Settings,
        consumer: ResultConsumer,
        on_notice: Callable[[str], None],
        *,
        max_steps: int = 0,
        clock: Callable[[], float] = time.time,
        storage: StorageMonitor | None = None,
        predecessor: Agent | None = None,
    ) -> None:
        self.path = path
        self.max_steps = max_steps
        self.on_notice = on_notice
        super().__init__(run, settings, clock, storage, predecessor)
        self.processor.consumers += (consumer,)

    def _build_source(
        self, positions: Mapping[str, ReadPosition], predecessor: RecordSource | None
    ) -> RecordSource:
        del predecessor
        self.log = LogFollower(
            self.run,
            self.path,
            self.counters,
            positions,
            self.clock,
            self.max_steps,
            self.settings.keys,
        )
        return self.log

    def report_coverage(self, text: str) -> None:
        """Report once what of the run is not monitored."""
        self.on_notice(text)

    def run_once(self) -> None:
        """As `Agent.run_once`; records from before the start send no notification."""
        self.processor.notification_policy.is_catching_up = self.log.is_catching_up
        super().run_once()
        if notice := self.log.pop_notice():
            self.on_notice(notice)
