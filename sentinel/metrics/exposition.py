"""State of one run for `/metrics` and the page, updated with the results of the pipeline."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass
from functools import cached_property
from threading import Lock
from typing import TYPE_CHECKING, Any

from sentinel.metrics.cluster_status import LATE_RECORDS, rejected_messages_by_reason
from sentinel.metrics.run_state import RunState
from sentinel.metrics.run_status import machine_to_dict, run_report, run_state_to_dict
from sentinel.model.counters import Counters
from sentinel.model.delivery_problem import DeliveryProblem
from sentinel.model.finding import Severity
from sentinel.model.incident import Incident
from sentinel.model.notification import Notification
from sentinel.model.record_batch import RecordBatch
from sentinel.model.storage_state import StorageState
from sentinel.pipeline.engine import Result
from sentinel.pipeline.time_use import TimeUse
from sentinel.signals.coverage import Coverage
from sentinel.signals.hardware import NodeMeasurements
from sentinel.store.silences import Suppression

if TYPE_CHECKING:
    from prometheus_client import CollectorRegistry


@dataclass(eq=False)
class Exposition:
    """Result consumer that shows one run: by `registry` to Prometheus, by `state` as JSON.

    `detectors` are the enabled ones with their usual severity. Each is exported as not firing from
    the start: a series that appears only when it fires looks like one that is missing.
    `per_rank_limit` ranks and a few outliers have series of their own. `run` is the run's name if
    it is known before its first record. `machine` returns the newest measurements of the node,
    `cluster_status` the role of this agent (see `AgentRole.status`). `sinks` are the names of the
    configured ones, `ignored_settings` those of invalid settings. `dashboard_url` is the address of
    the run's dashboard. `loop_seconds` returns the seconds since the last turn of the agent's loop,
    `clock` seconds since the epoch. `readable_signals` are those that the enabled detectors read.
    `update` is called by the agent's loop, `registry` and `state` by any thread.
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
    dashboard_url: str = ""
    storage: Callable[[], StorageState] = StorageState
    loop_seconds: Callable[[], float] = lambda: 0.0
    clock: Callable[[], float] = time.time

    def __post_init__(self) -> None:
        coverage = Coverage(self.readable_signals)
        self._run_state = RunState(self.run, self.per_rank_limit, coverage=coverage)
        self.delivery_problems: tuple[DeliveryProblem, ...] = ()
        self._lock = Lock()

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
        self.delivery_problems = tuple(each for each in problems if each.is_reported(now))

    def state(self) -> dict[str, Any]:
        """The run's state as plain data, for the web page and `sentinel status`.

        Keys: those of `run_state_to_dict`, delivery_problems (see `DeliveryProblem.to_dict`),
        is_live (true: an agent serves the run), is_log (false: its agent follows it),
        ignored_settings (names of invalid ones), dashboard_url (empty without one), storage (see
        `StorageState.to_dict`), machine (see `machine_to_dict`), refused (number of rejected
        messages of other agents, by reason), late_records (records too late to be combined),
        cluster (see `AgentRole.status`).
        """
        return run_state_to_dict(self.copy_run_state(), self.clock()) | {
            "is_live": True,
            "is_log": False,
            "ignored_settings": list(self.ignored_settings),
            "dashboard_url": self.dashboard_url,
            "delivery_problems": [each.to_dict() for each in self.delivery_problems],
            "storage": self.storage().to_dict(),
            "machine": machine_to_dict(self.machine()),
            "refused": rejected_messages_by_reason(self.counters.values.copy()),
            "late_records": self.counters.values.get(LATE_RECORDS, 0.0),
            "cluster": self.cluster_status(),
        }

    def report(self) -> dict[str, Any]:
        """What other nodes show of the run, see `run_report`; for the thread of `update`."""
        return run_report(self._run_state)

    @cached_property
    def registry(self) -> CollectorRegistry:
        """The registry of prometheus_client whose one collector makes the families at a scrape."""
        # A short run ends without a scrape.
        from prometheus_client import CollectorRegistry  # noqa: PLC0415

        from sentinel.metrics.collector import RunCollector  # noqa: PLC0415

        registry = CollectorRegistry(auto_describe=False)
        registry.register(RunCollector(self))
        return registry

    def copy_run_state(self) -> RunState:
        """The state of the run at one moment; for any thread."""
        with self._lock:
            return self._run_state.copy()
