"""Judged: what the agent of a host made of its run, read from its database and its metrics."""

from __future__ import annotations

from collections.abc import Iterable
from contextlib import closing
from pathlib import Path
from typing import Any

from expected_values import mean, spread
from hosts import PATIENCE, Host
from prometheus_client.parser import text_string_to_metric_families
from support.rank_processes import until

from sentinel.model.notification import Notification
from sentinel.model.record import Event, Record
from sentinel.notify import notification_codec
from sentinel.store.database import connect
from sentinel.store.history import History


class Judged:
    """Of the only run on that host, or the one named."""

    def __init__(self, host: Host, run: Path | None = None) -> None:
        self.host = host
        self.run = run or host.run()

    def steps(self) -> list[Record]:
        """The run's record of each step, in the order they were judged."""
        return [r for r in self.all() if r.event is Event.STEP]

    def all(self) -> list[Record]:
        """Everything in its history."""
        with closing(connect(self.run / "sentinel.db")) as connection:
            return [*History(connection).records(self.run.name)]

    def incidents(self) -> list[dict[str, Any]]:
        """What was found wrong, the oldest first."""
        with closing(connect(self.run / "sentinel.db")) as connection:
            return History(connection).incidents()[::-1]

    def pages(self) -> list[Notification]:
        """What people were to be told, in order, if there is a sink."""
        with closing(connect(self.run / "sentinel.db")) as connection:
            rows = connection.execute("select page from outbox order by rowid").fetchall()
        return [notification_codec.decode(text) for (text,) in rows]

    def metrics(self) -> dict[str, dict[tuple[str, ...], float]]:
        """Numbers on /metrics: by name, then by the values of their labels but for the run's."""
        found: dict[str, dict[tuple[str, ...], float]] = {}
        for family in text_string_to_metric_families(self.host.fetch(f"{self.host.url()}/metrics")):
            for sample in family.samples:
                labels = tuple(v for k, v in sorted(sample.labels.items()) if k != "run")
                found.setdefault(sample.name, {})[labels] = sample.value
        return found

    def heard(self, count: int) -> list[Record]:
        """All steps, once there are so many."""
        until(lambda: len(self.steps()) >= count, PATIENCE, f"{count} steps; {self.log}")
        return self.steps()

    def over(self) -> Judged:
        """Itself, once its agent has left."""
        until(self._left, PATIENCE, f"the agent of {self.host.name} has left; {self.log}")
        return self

    def _left(self) -> bool:
        # One that was killed, and whose successor is only beginning, has left its word behind.
        return not (self.run / "agent.json").exists() and not self.host.processes(self.run.name)

    @property
    def log(self) -> str:
        """What its agent wrote."""
        path = self.run / "agent.log"
        return path.read_text(errors="replace") if path.exists() else "no log"


def expect(
    steps: Iterable[Record],
    numbers: Iterable[int],
    ranks: list[int],
    *,
    weighted: bool = True,
    missing: str | None = None,
) -> None:
    """These steps, no more and none twice, and each exactly what all these ranks said of it.

    `missing` are ranks that are to be named as such.
    """
    steps, numbers = [*steps], [*numbers]
    heard = [(record.attempt, record.step, record.spread["loss"].count) for record in steps]
    assert heard == [(heard[0][0] if heard else 0, step, len(ranks)) for step in numbers]
    for record in steps:
        told = record.spread["loss"]
        assert record.attributes.get("missing") == missing, record.step
        assert record.values["loss"] == mean(ranks, record.step, weighted=weighted), record.step
        for name, value in spread(ranks, record.step).items():
            assert getattr(told, name) == value, (record.step, name)
