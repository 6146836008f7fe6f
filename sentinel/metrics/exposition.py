"""Exposition: the run's standing for Prometheus and for the page, kept up to date by verdicts."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.metrics_core import Metric
from prometheus_client.registry import Collector

from sentinel.metrics.cluster_families import (
    cluster_families,
    is_orphan,
    judged_here,
    refused,
    told_here,
)
from sentinel.metrics.families import families
from sentinel.metrics.machine_families import machine_families
from sentinel.metrics.run_state import Standing, worst_rank
from sentinel.model.counters import Tally
from sentinel.model.finding import Severity
from sentinel.model.hardware import Machine
from sentinel.model.incident import Incident, Onset, Page
from sentinel.model.record_batch import Sheet
from sentinel.pipeline.engine import Verdict
from sentinel.signals.catalogue import SIGNALS
from sentinel.store.cases import belonging, case_of
from sentinel.store.history import dated, described
from sentinel.store.silences import Quiet, plain


class Exposition(Collector):
    """Outlet and Prometheus collector over one run, in a `registry` of its own.

    `detectors` are the enabled ones with their usual severity: each is shown as not firing from
    the start, since a series that appears only when it fires cannot be told from a missing one.
    `per_rank_limit` ranks, and a few beyond it that stand out, have series of their own. `run` is
    the run's name where it is known before its first record, `machine` gives what is known of the
    node. `take` is called by the agent's loop, the rest by any thread.
    """

    def __init__(
        self,
        tally: Tally,
        detectors: Mapping[str, Severity],
        per_rank_limit: int = 64,
        run: str = "",
        machine: Callable[[], Machine] = Machine,
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._tally = tally
        self._detectors = dict(detectors)
        self._standing = Standing(run, per_rank_limit)
        self._machine = machine
        self.cluster: Callable[[], Mapping[str, Any]] = dict
        """Gives this agent's part among those of its job; empty where that is not known."""
        self._onsets: dict[str, Onset] = {}
        self._lock = Lock()
        self.registry.register(self)

    def take(self, verdict: Verdict) -> None:
        """Take one verdict over; microseconds, never waits but for a copy being made."""
        with self._lock:
            self._standing.run = self._standing.run or verdict.record.run
            self._standing.hear(verdict.record)
            for page in verdict.pages:
                self._standing.tell(page)
            for incident in verdict.moved:
                self._standing.move(incident)
            for page in verdict.told:
                self._standing.conclude(page)

    def read(self, sheet: Sheet) -> None:
        """Take over what the ranks of that sheet say of how they are."""
        with self._lock:
            self._standing.read(sheet)

    def resume(self, incidents: Iterable[Incident], cases: Iterable[Page] = ()) -> None:
        """Show these as firing: an agent that was restarted must not read as a recovery."""
        with self._lock:
            for page in cases:
                self._standing.conclude(page)
            for incident in incidents:
                self._standing.run = self._standing.run or incident.key.run
                self._standing.open[incident.name] = incident

    def date(self, incident: str, onset: Onset) -> None:
        """Show that the incident of that name was found to have begun then."""
        self._onsets[incident] = onset

    def hush(self, quiet: Quiet) -> None:
        """Show that this keeps pages from people now."""
        with self._lock:
            self._standing.quiet = quiet

    def collect(self) -> Iterator[Metric]:
        """The families of this moment, as prometheus_client asks for them."""
        now, cluster = self._now(), self.cluster()
        detectors = judged_here(self._detectors, cluster)
        yield from told_here(families(now, detectors, self._tally.counts.copy()), cluster)
        if now.run:
            yield from machine_families(self._machine(), now.run)
            orphan = is_orphan(cluster, now.settings)
            yield from cluster_families(cluster, now.run, active=now.active, orphan=orphan)

    def state(self) -> dict[str, Any]:
        """The run's standing in plain words and numbers, for the page and for `status`.

        Keys: run, attempt, state, active, step, steps, checkpoints, last_step_time and
        last_checkpoint_time (seconds since the epoch, not-a-number when there was none), about
        (facts and settings by name), taps (by integration, then by what they say of themselves,
        the ranks that say so), signals (value, unit, help, metric, and over ranks min, max, mean,
        std, worst_rank), logged, liveness, machine, cases (what people were told as one), incidents
        (with silenced and acknowledged, case and diagnosis), silences, tier, ranks (those shown one
        by one), ranks_unshown (how many more there are), refused (messages of other agents, by
        reason), cluster (see `Nodes.state`). Values may be not-a-number or infinite.
        """
        now = self._now()
        cases = [case_of(page) for page in now.open_cases]
        of = {name: case for case in cases for name in case["incidents"]}
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
            "about": {**now.settings, **now.about},
            "taps": _taps(now),
            "signals": {name: _signal(now, name) for name in now.signals},
            "logged": now.logged,
            "liveness": now.alive,
            "machine": _machine(self._machine()),
            "cases": cases,
            "incidents": [
                described(i)
                | now.quiet.said(i)
                | dated(self._onsets.get(i.name))
                | belonging(of.get(i.name))
                for i in now.open.values()
            ],
            "silences": [plain(silence) for silence in now.quiet.silences],
            "tier": now.quiet.tier.value,
            "ranks": {str(rank): known._asdict() for rank, known in now.ranks.items()},
            "ranks_unshown": now.crowd.unshown,
            "refused": refused(self._tally.counts.copy()),
            "cluster": self.cluster(),
        }

    def _now(self) -> Standing:
        with self._lock:
            return self._standing.copy()


def _taps(now: Standing) -> dict[str, dict[str, list[int]]]:
    told: dict[str, dict[str, list[int]]] = {}
    for (name, rank), state in sorted(now.taps.items()):
        told.setdefault(name, {}).setdefault(state, []).append(rank)
    return told


def _machine(machine: Machine) -> dict[str, Any]:
    gpus = [
        {
            "gpu": gpu.index,
            "name": gpu.name,
            "uuid": gpu.uuid,
            "up": not gpu.lost,
            "ranks": list(machine.ranks.get(gpu.index, ())),
            "throttled": list(gpu.throttled),
            **gpu.values,
        }
        for gpu in machine.gpus
    ]
    host, disks, seen = dict(machine.host), dict(machine.disks), dict(machine.seen)
    return {"host": host, "disks": disks, "gpus": gpus, "seen": seen}


def _signal(now: Standing, name: str) -> dict[str, Any]:
    signal, spread = SIGNALS[name], now.spreads.get(name)
    told: dict[str, Any] = {
        "value": now.signals[name],
        "unit": signal.unit,
        "help": signal.help,
        "metric": signal.metric,
    }
    if spread is not None:
        told |= {"min": spread.min, "max": spread.max, "mean": spread.mean, "std": spread.std}
        told["worst_rank"] = worst_rank(spread)
    return told
