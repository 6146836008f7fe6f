"""Prometheus collector and JSON state of one run, updated with the results of the pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass
from threading import Lock
from typing import Any

from prometheus_client import CollectorRegistry
from prometheus_client.registry import Collector

from sentinel.metrics.case_families import CaseAlert, case_families, exported_cases
from sentinel.metrics.cluster_families import (
    LATE_RECORDS,
    cluster_families,
    detectors_run_here,
    families_exported_here,
    is_isolated,
    rejected_messages_by_reason,
)
from sentinel.metrics.families import machine_families, metric_families
from sentinel.metrics.family import Family, FamilyBuilder, sanitize_label
from sentinel.metrics.run_state import RunState
from sentinel.metrics.run_status import machine_to_dict, run_report, run_state_to_dict
from sentinel.model.counters import Counters
from sentinel.model.delivery_problem import DeliveryProblem
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident
from sentinel.model.notification import Notification
from sentinel.model.record_batch import RecordBatch
from sentinel.model.storage_state import OK, STORAGE_MODES, StorageState
from sentinel.pipeline.engine import Result
from sentinel.pipeline.time_use import TimeUse
from sentinel.signals.coverage import Coverage
from sentinel.signals.hardware import NodeMeasurements
from sentinel.store.silences import Suppression
from sentinel.transport.slurm_job import SlurmJob

MAX_ENDED_ALERTS = 64
"""Number of alerts of cases that are exported as not firing after they ended: the newest."""


@dataclass(eq=False)
class Exposition(Collector):
    """Result consumer and Prometheus collector of one run, in its own `registry`.

    `detectors` are the enabled ones with their usual severity. Each is exported as not firing from
    the start: a series that appears only when it fires looks like one that is missing.
    `per_rank_limit` ranks and a few outliers have series of their own. `run` is the run's name if
    it is known before its first record. `machine` returns the newest measurements of the node,
    `cluster_status` the role of this agent (see `AgentRole.status`). `sinks` are the names of the
    configured ones, `ignored_settings` those of invalid settings. `loop_seconds` returns the
    seconds since the last turn of the agent's loop, `clock` seconds since the epoch.
    `readable_signals` are those that the enabled detectors read. `update` is called by the agent's
    loop, `collect` and `state` by any thread.
    """

    counters: Counters
    detectors: Mapping[str, Severity]
    per_rank_limit: int = 64
    run: str = ""
    machine: Callable[[], NodeMeasurements] = NodeMeasurements
    cluster_status: Callable[[], Mapping[str, Any]] = dict
    readable_signals: frozenset[str] = frozenset()
    sinks: Collection[str] = ()
    ignored_settings: Collection[str] = ()
    storage: Callable[[], StorageState] = StorageState
    loop_seconds: Callable[[], float] = lambda: 0.0
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        self.registry = CollectorRegistry(auto_describe=False)
        coverage = Coverage(self.readable_signals)
        self._run_state = RunState(self.run, self.per_rank_limit, coverage=coverage)
        self._delivery_problems: tuple[DeliveryProblem, ...] = ()
        self._exported_alerts: dict[tuple[str, Severity], CaseAlert] = {}
        """Alerts of cases that a scrape showed, the newest last."""
        self._lock = Lock()
        self.registry.register(self)

    def update(self, result: Result) -> None:
        """Apply one result. Takes microseconds; waits only for a copy in another thread."""
        with self._lock:
            run_state, alerts = self._run_state, self._run_state.alerts
            run_state.run = run_state.run or result.record.run
            run_state.update(result.record)
            run_state.thresholds.update(result.thresholds)
            for notification in result.notifications:
                alerts.update_notification(notification)
            for incident in result.changed_incidents:
                alerts.update_incident(incident)
            for notification in result.case_notifications:
                alerts.update_case(notification)

    def update_batch(self, batch: RecordBatch) -> None:
        """Apply the step records of several ranks."""
        with self._lock:
            self._run_state.update_batch(batch)

    def restore(
        self, incidents: Iterable[Incident], open_cases: Iterable[Notification] = ()
    ) -> None:
        """Set the open incidents and cases, so that a restart does not look like a recovery."""
        with self._lock:
            for notification in open_cases:
                self._run_state.alerts.update_case(notification)
            for incident in incidents:
                self._run_state.run = self._run_state.run or incident.key.run
                self._run_state.alerts.open_incidents[incident.name] = incident

    def set_time_use(self, time_use: TimeUse) -> None:
        """Continue with the use of time of the last agent, which `update` changes."""
        with self._lock:
            self._run_state.time_use = time_use

    def set_start_time(self, time: float) -> None:
        """Set the time of the first record of the run (epoch seconds)."""
        self._run_state.start_time = time

    def set_counts(self, steps: int, checkpoints: int) -> None:
        """Set the numbers of steps and of checkpoints so far, of which few are read again."""
        with self._lock:
            self._run_state.step_count = steps
            self._run_state.checkpoint_count = checkpoints

    @property
    def coverage(self) -> Coverage:
        """What of the run is monitored; for the thread that calls `update`."""
        return self._run_state.coverage

    def set_suppression(self, suppression: Suppression) -> None:
        """Set the silences, acknowledgements and tier that are in force."""
        with self._lock:
            self._run_state.alerts.suppression = suppression

    def set_delivery_problems(self, problems: Iterable[DeliveryProblem]) -> None:
        """Set the sinks whose receivers do not accept notifications."""
        now = self.clock()
        self._delivery_problems = tuple(each for each in problems if each.is_reported(now))

    def collect(self) -> Iterator[Family]:
        """All metric families; called by prometheus_client at a scrape."""
        run_state, cluster = self._copy_run_state(), self.cluster_status()
        detectors = detectors_run_here(self.detectors, cluster)
        yield from families_exported_here(
            metric_families(run_state, detectors, self.counters.values.copy()), cluster
        )
        if run_state.run:
            yield from self._case_families(run_state)
            yield self._delivery_family(run_state.run)
            yield self._storage_family(run_state.run)
            yield self._loop_family(run_state.run)
            job = SlurmJob.of_metadata(run_state.reported.texts)
            job_id = "" if job is None else job.job_id
            yield from machine_families(self.machine(), run_state.run, job_id)
            isolated = is_isolated(cluster, run_state.reported.settings)
            yield from cluster_families(
                cluster, run_state.run, active=run_state.is_active, isolated=isolated
            )

    def state(self) -> dict[str, Any]:
        """The run's state as plain data, for the web page and `sentinel status`.

        Keys: those of `run_state_to_dict`, delivery_problems (see `DeliveryProblem.to_dict`),
        is_live (true: an agent serves the run), is_log (false: its agent follows it),
        ignored_settings (names of invalid ones), storage (see `StorageState.to_dict`), machine (see
        `machine_to_dict`), refused (number of rejected messages of other agents, by reason),
        late_records (records too late to be combined), cluster (see `AgentRole.status`).
        """
        return run_state_to_dict(self._copy_run_state(), self.clock()) | {
            "is_live": True,
            "is_log": False,
            "ignored_settings": list(self.ignored_settings),
            "delivery_problems": [each.to_dict() for each in self._delivery_problems],
            "storage": self.storage().to_dict(),
            "machine": machine_to_dict(self.machine()),
            "refused": rejected_messages_by_reason(self.counters.values.copy()),
            "late_records": self.counters.values.get(LATE_RECORDS, 0.0),
            "cluster": self.cluster_status(),
        }

    def report(self) -> dict[str, Any]:
        """What other nodes show of the run, see `run_report`; for the thread of `update`."""
        return run_report(self._run_state)

    def _case_families(self, run_state: RunState) -> Iterator[Family]:
        cases = exported_cases(run_state.alerts, self.clock())
        with self._lock:
            exported, shown = self._exported_alerts, []
            for case in cases:
                # A cause that is named later does not make it another alert.
                alert = exported.pop(case.alert.key, case.alert if case.is_firing else None)
                if alert is None:
                    shown.append(case)
                else:
                    exported[alert.key] = alert
                    shown.append(case._replace(alert=alert))
            for key in list(exported)[:-MAX_ENDED_ALERTS]:
                del exported[key]
            firing = {case.alert for case in shown}
            # Without a last value of 0, an alert that ended before the agent was killed would fire
            # again: the rules use the last values of a killed agent.
            ended = [alert for alert in exported.values() if alert not in firing]
        yield from case_families(FamilyBuilder(sanitize_label(run_state.run)), shown, ended)

    def _delivery_family(self, run: str) -> Family:
        counts = {(sink, state): 0 for sink in self.sinks for state in ("retrying", "dead")}
        for problem in self._delivery_problems:
            counts[problem.sink, "retrying"] = problem.waiting
            counts[problem.sink, "dead"] = problem.given_up
        return FamilyBuilder(sanitize_label(run)).gauge(
            "sentinel_alerts_undelivered",
            "Notifications that the receiver of the sink rejected for good (dead) since it last "
            "accepted one, or that are retried for longer than a minute (retrying).",
            {(sanitize_label(sink), state): float(n) for (sink, state), n in counts.items()},
            "sink",
            "state",
        )

    def _storage_family(self, run: str) -> Family:
        state = self.storage()
        return FamilyBuilder(sanitize_label(run)).gauge(
            "sentinel_storage_degraded",
            "1 if the run is stored in memory only, or if its damaged database was replaced.",
            {mode: float(mode == state.mode) for mode in STORAGE_MODES if mode != OK},
            "reason",
        )

    def _loop_family(self, run: str) -> Family:
        return FamilyBuilder(sanitize_label(run)).gauge(
            "sentinel_agent_loop_seconds",
            "Seconds since the last turn of the agent's main loop, in which it evaluates records.",
            self.loop_seconds(),
        )

    def _copy_run_state(self) -> RunState:
        with self._lock:
            return self._run_state.copy()
