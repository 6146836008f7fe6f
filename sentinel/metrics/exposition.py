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
    detectors_run_here,
    families_exported_here,
    is_isolated,
    refused_messages_by_reason,
)
from sentinel.metrics.families import metric_families
from sentinel.metrics.machine_families import machine_families
from sentinel.metrics.run_state import RunState, worst_rank
from sentinel.model.counters import Counters
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident, Onset
from sentinel.model.notification import Notification
from sentinel.model.record_batch import RecordBatch
from sentinel.pipeline.engine import Result
from sentinel.signals.catalogue import SIGNALS
from sentinel.signals.hardware import NodeMeasurements
from sentinel.store.cases import case_fields, case_to_dict
from sentinel.store.history import incident_to_dict, onset_fields
from sentinel.store.silences import Suppression, silence_to_dict


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
        counters: Counters,
        detectors: Mapping[str, Severity],
        per_rank_limit: int = 64,
        run: str = "",
        machine: Callable[[], NodeMeasurements] = NodeMeasurements,
    ) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        self._counters = counters
        self._detectors = dict(detectors)
        self._run_state = RunState(run, per_rank_limit)
        self._machine = machine
        self.cluster_state: Callable[[], Mapping[str, Any]] = dict
        """Gives this agent's part among those of its job; empty where that is not known."""
        self._onsets: dict[str, Onset] = {}
        self._lock = Lock()
        self.registry.register(self)

    def update(self, result: Result) -> None:
        """Take one verdict over; microseconds, never waits but for a copy being made."""
        with self._lock:
            self._run_state.run = self._run_state.run or result.record.run
            self._run_state.update(result.record)
            for page in result.notifications:
                self._run_state.update_notification(page)
            for incident in result.changed_incidents:
                self._run_state.update_incident(incident)
            for page in result.case_notifications:
                self._run_state.update_case(page)

    def update_batch(self, batch: RecordBatch) -> None:
        """Take over what the ranks of that sheet say of how they are."""
        with self._lock:
            self._run_state.update_batch(batch)

    def restore(
        self, incidents: Iterable[Incident], open_cases: Iterable[Notification] = ()
    ) -> None:
        """Show these as firing: an agent that was restarted must not read as a recovery."""
        with self._lock:
            for page in open_cases:
                self._run_state.update_case(page)
            for incident in incidents:
                self._run_state.run = self._run_state.run or incident.key.run
                self._run_state.open_incidents[incident.name] = incident

    def set_onset(self, incident: str, onset: Onset) -> None:
        """Show that the incident of that name was found to have begun then."""
        self._onsets[incident] = onset

    def set_suppression(self, suppression: Suppression) -> None:
        """Show that this keeps pages from people now."""
        with self._lock:
            self._run_state.suppression = suppression

    def collect(self) -> Iterator[Metric]:
        """The families of this moment, as prometheus_client asks for them."""
        now, cluster = self._copy_run_state(), self.cluster_state()
        detectors = detectors_run_here(self._detectors, cluster)
        yield from families_exported_here(
            metric_families(now, detectors, self._counters.values.copy()), cluster
        )
        if now.run:
            yield from machine_families(self._machine(), now.run)
            orphan = is_isolated(cluster, now.settings)
            yield from cluster_families(cluster, now.run, active=now.is_active, isolated=orphan)

    def state(self) -> dict[str, Any]:
        """The run's standing in plain words and numbers, for the page and for `status`.

        Keys: run, attempt, state, active, step, steps, checkpoints, last_step_time and
        last_checkpoint_time (seconds since the epoch, not-a-number when there was none), about
        (facts and settings by name), taps (by integration, then by what they say of themselves,
        the ranks that say so), signals (value, unit, help, metric, and over ranks min, max, mean,
        std, worst_rank), logged, liveness, machine, cases (what people were told as one), incidents
        (with silenced and acknowledged, case and diagnosis), silences, tier, ranks (those shown one
        by one), ranks_hidden (how many more there are), refused (messages of other agents, by
        reason), cluster (see `Nodes.state`). Values may be not-a-number or infinite.
        """
        now = self._copy_run_state()
        cases = [case_to_dict(page) for page in now.open_cases]
        of = {name: case for case in cases for name in case["incidents"]}
        return {
            "run": now.run,
            "attempt": max(now.attempt, 0),
            "state": now.state,
            "active": now.is_active,
            "step": now.step,
            "steps": now.step_count,
            "checkpoints": now.checkpoint_count,
            "last_step_time": now.last_step_time,
            "last_checkpoint_time": now.last_checkpoint_time,
            "metadata": {**now.settings, **now.metadata},
            "patches": _patch_states(now),
            "signals": {name: _signal_to_dict(now, name) for name in now.signals},
            "logged": now.logged,
            "liveness": now.liveness,
            "machine": _machine_to_dict(self._machine()),
            "cases": cases,
            "incidents": [
                incident_to_dict(i)
                | now.suppression.suppression_fields(i)
                | onset_fields(self._onsets.get(i.name))
                | case_fields(of.get(i.name))
                for i in now.open_incidents.values()
            ],
            "silences": [silence_to_dict(silence) for silence in now.suppression.silences],
            "tier": now.suppression.tier.value,
            "ranks": {str(rank): known._asdict() for rank, known in now.shown_ranks.items()},
            "ranks_hidden": now.rank_selection.hidden_count,
            "refused": refused_messages_by_reason(self._counters.values.copy()),
            "cluster": self.cluster_state(),
        }

    def _copy_run_state(self) -> RunState:
        with self._lock:
            return self._run_state.copy()


def _patch_states(run_state: RunState) -> dict[str, dict[str, list[int]]]:
    told: dict[str, dict[str, list[int]]] = {}
    for (name, rank), state in sorted(run_state.patches.items()):
        told.setdefault(name, {}).setdefault(state, []).append(rank)
    return told


def _machine_to_dict(machine: NodeMeasurements) -> dict[str, Any]:
    gpus = [
        {
            "gpu": gpu.index,
            "name": gpu.name,
            "uuid": gpu.uuid,
            "up": not gpu.is_lost,
            "ranks": list(machine.ranks_by_gpu.get(gpu.index, ())),
            "throttled": list(gpu.throttle_reasons),
            **gpu.values,
        }
        for gpu in machine.gpus
    ]
    host, disks, seen = (
        dict(machine.host_values),
        dict(machine.free_bytes),
        dict(machine.measured_at),
    )
    return {"host": host, "disks": disks, "gpus": gpus, "seen": seen}


def _signal_to_dict(run_state: RunState, name: str) -> dict[str, Any]:
    signal, spread = SIGNALS[name], run_state.spreads.get(name)
    told: dict[str, Any] = {
        "value": run_state.signals[name],
        "unit": signal.unit,
        "help": signal.help,
        "metric": signal.metric,
    }
    if spread is not None:
        told |= {"min": spread.min, "max": spread.max, "mean": spread.mean, "std": spread.std}
        told["worst_rank"] = worst_rank(spread)
    return told
