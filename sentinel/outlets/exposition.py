"""Exposition: the run's standing for Prometheus and for the page, kept up to date by verdicts."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import asdict
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sentinel.engine import Verdict
from sentinel.finding import Severity
from sentinel.incident import Incident
from sentinel.outlets.families import families
from sentinel.outlets.history import described
from sentinel.outlets.standing import Standing, worst_rank
from sentinel.signals import SIGNALS
from sentinel.tally import Tally


class Exposition(Collector):
    """Outlet and Prometheus collector over one run, in a `registry` of its own.

    `detectors` are the enabled ones with their usual severity: each is shown as not firing from
    the start, since a series that appears only when it fires cannot be told from a missing one.
    At most `per_rank_limit` ranks have series of their own. `run` is the run's name where it is
    known before its first record. `take` is called by the agent's loop, the rest by any thread.
    """

    def __init__(
        self,
        tally: Tally,
        detectors: Mapping[str, Severity],
        per_rank_limit: int = 64,
        run: str = "",
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._tally = tally
        self._detectors = dict(detectors)
        self._standing = Standing(run, per_rank_limit)
        self._lock = Lock()
        self.registry.register(self)

    def take(self, verdict: Verdict) -> None:
        """Take one verdict over; microseconds, never waits but for a copy being made."""
        with self._lock:
            self._standing.run = self._standing.run or verdict.record.run
            self._standing.hear(verdict.record)
            for page in verdict.pages:
                self._standing.tell(page)

    def resume(self, incidents: Iterable[Incident]) -> None:
        """Show these as firing: an agent that was restarted must not read as a recovery."""
        with self._lock:
            for incident in incidents:
                self._standing.run = self._standing.run or incident.key.run
                self._standing.open[incident.name] = incident

    def collect(self) -> Iterator[Metric]:
        """The families of this moment, as prometheus_client asks for them."""
        return families(self._now(), self._detectors, self._tally.counts.copy())

    def state(self) -> dict[str, Any]:
        """The run's standing in plain words and numbers, for the page and for `status`.

        Keys: run, attempt, state, active, step, steps, checkpoints, last_step_time and
        last_checkpoint_time (seconds since the epoch, not-a-number when there was none), about,
        signals (value, unit, help, metric, and over ranks min, max, worst_rank), logged,
        liveness, incidents, ranks. Values may be not-a-number or infinite.
        """
        now = self._now()
        return {
            "run": now.run,
            "attempt": max(now.attempt, 0),
            "state": now.state,
            "active": now.active,
            "step": now.step,
            "steps": now.steps,
            "checkpoints": now.saves,
            "last_step_time": now.last_step,
            "last_checkpoint_time": now.last_save,
            "about": now.about,
            "signals": {name: _signal(now, name) for name in now.signals},
            "logged": now.logged,
            "liveness": now.alive,
            "incidents": [described(incident) for incident in now.open.values()],
            "ranks": {str(rank): asdict(known) for rank, known in sorted(now.ranks.items())},
        }

    def _now(self) -> Standing:
        with self._lock:
            return self._standing.copy()


def _signal(now: Standing, name: str) -> dict[str, Any]:
    signal, spread = SIGNALS[name], now.spreads.get(name)
    told: dict[str, Any] = {
        "value": now.signals[name],
        "unit": signal.unit,
        "help": signal.help,
        "metric": signal.metric,
    }
    if spread is not None:
        told |= {"min": spread.min, "max": spread.max, "worst_rank": worst_rank(spread)}
    return told
