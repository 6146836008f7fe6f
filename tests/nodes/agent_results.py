"""The results of the agent of a host, read from its database and its metrics."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any

from expected_values import mean, spread
from hosts import TIMEOUT_SECONDS, Host
from jobs import Job
from prometheus_client.parser import text_string_to_metric_families
from support.rank_processes import until

from sentinel.model.notification import Notification
from sentinel.model.record import Event, Record
from sentinel.store import notification_codec
from sentinel.store.database import connect_read_only
from sentinel.store.history import History


class AgentResults:
    """The results for the only run on that host, or for the given one."""

    def __init__(self, host: Host, run: Path | None = None) -> None:
        self.host = host
        self.run = run or host.run()

    @property
    def database(self) -> Path:
        """The database of its agent, in shared memory while that works."""
        return self.host.folder / "shm" / self.run.name / "state" / "sentinel.db"

    @contextmanager
    def _reading(self) -> Iterator[sqlite3.Connection]:
        """The database, which is in shared memory while the agent works; its copy afterwards."""
        try:
            connection = connect_read_only(self.database)
        except (OSError, sqlite3.OperationalError):
            connection = connect_read_only(self.run / "sentinel.db")
        with closing(connection):
            yield connection

    def steps(self) -> list[Record]:
        """The record of the run for each step, in the order of evaluation."""
        return [r for r in self.records() if r.event is Event.STEP]

    def records(self) -> list[Record]:
        """All records in its history."""
        with self._reading() as connection:
            return [*History(connection).records(self.run.name)]

    def incidents(self) -> list[dict[str, Any]]:
        """The incidents, oldest first."""
        with self._reading() as connection:
            return History(connection).incidents()[::-1]

    def notifications(self) -> list[Notification]:
        """The messages in the outbox, in order; none without a sink."""
        with self._reading() as connection:
            query = "select notification from outbox where state != 'merged' order by rowid"
            rows = connection.execute(query).fetchall()
        return [notification_codec.decode(text) for (text,) in rows]

    def state(self) -> dict[str, Any]:
        """The JSON of /api/run; empty while the agent does not answer."""
        text = self.host.fetch(f"{self.host.url()}/api/run")
        return dict(json.loads(text)) if text else {}

    def metrics(self) -> dict[str, dict[tuple[str, ...], float]]:
        """The samples of /metrics by name, then by label values without the run."""
        samples: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.host.fetch(f"{self.host.url()}/metrics")):
            for sample in family.samples:
                labels = tuple(v for k, v in sorted(sample.labels.items()) if k != "run")
                samples.setdefault(sample.name, {})[labels] = sample.value
        return samples

    def wait_for_steps(self, count: int) -> list[Record]:
        """All steps, once there are at least `count` that the ranks have sent.

        Under `sentinel run` a rank sends a step when the next one begins.
        """
        sent = count - Job.under_run
        until(lambda: len(self.steps()) >= sent, TIMEOUT_SECONDS, f"{sent} steps; {self.log}")
        return self.steps()

    def wait_until_connected(self) -> AgentResults:
        """Wait until its agent, of a follower, is connected to the head; returns self."""
        until(
            lambda: self.metrics().get("sentinel_head_connection_up", {}).get(()),
            TIMEOUT_SECONDS,
            self.log,
        )
        return self

    def wait_until_ended(self) -> AgentResults:
        """Wait until its agent has ended; returns self."""
        until(
            self._has_ended, TIMEOUT_SECONDS, f"the agent of {self.host.name} has ended; {self.log}"
        )
        return self

    def _has_ended(self) -> bool:
        # While the successor of a killed agent starts, the file of the killed one remains.
        return not (self.run / "agent.json").exists() and not self.host.processes(self.run.name)

    @property
    def log(self) -> str:
        """The log of its agent."""
        path = self.run / "agent.log"
        return path.read_text(errors="replace") if path.exists() else "no log"


def assert_steps(
    steps: Iterable[Record],
    numbers: Iterable[int],
    ranks: list[int],
    *,
    weighted: bool = True,
    missing: str | None = None,
) -> None:
    """Assert that `steps` are these, each once, with the exact values of all these ranks.

    `missing` are the ranks that each record must name as missing.
    """
    steps, numbers = [*steps], [*numbers]
    found = [(record.attempt, record.step, record.spread["loss"].count) for record in steps]
    assert found == [(found[0][0] if found else 0, step, len(ranks)) for step in numbers]
    for record in steps:
        statistics = record.spread["loss"]
        assert record.attributes.get("missing") == missing, record.step
        assert record.values["loss"] == mean(ranks, record.step, weighted=weighted), record.step
        for name, value in spread(ranks, record.step).items():
            assert getattr(statistics, name) == value, (record.step, name)
