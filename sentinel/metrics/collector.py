"""Makes the metric families of one run at each scrape."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from threading import Lock

from prometheus_client.registry import Collector

from sentinel.metrics.case_families import CaseAlert, case_families, exported_cases
from sentinel.metrics.cluster_families import (
    cluster_families,
    detectors_run_here,
    families_exported_here,
)
from sentinel.metrics.cluster_status import is_isolated
from sentinel.metrics.exposition import Exposition
from sentinel.metrics.families import machine_families, metric_families
from sentinel.metrics.family import Family, FamilyBuilder
from sentinel.metrics.label import sanitize_label
from sentinel.metrics.run_state import RunState
from sentinel.model.finding import Severity
from sentinel.model.storage_state import OK, STORAGE_MODES
from sentinel.transport.slurm_job import SlurmJob

MAX_ENDED_ALERTS = 64
"""Number of alerts of cases that are exported as not firing after they ended: the newest."""


@dataclass(eq=False)
class RunCollector(Collector):
    """Prometheus collector of the run of `exposition`. Any thread may call `collect`."""

    exposition: Exposition
    _exported_alerts: dict[tuple[str, Severity], CaseAlert] = field(default_factory=dict)
    """Alerts of cases that a scrape showed, the newest last."""
    _lock: Lock = field(default_factory=Lock)

    def collect(self) -> Iterator[Family]:
        """All metric families; called by prometheus_client at a scrape."""
        run_state, cluster = self.exposition.copy_run_state(), self.exposition.cluster_status()
        detectors = detectors_run_here(self.exposition.detectors, cluster)
        yield from families_exported_here(
            metric_families(run_state, detectors, self.exposition.counters.values.copy()), cluster
        )
        if run_state.run:
            yield from self._case_families(run_state)
            yield self._delivery_family(run_state.run)
            yield self._storage_family(run_state.run)
            yield self._loop_family(run_state.run)
            job = SlurmJob.of_metadata(run_state.reported.texts)
            job_id = "" if job is None else job.job_id
            yield from machine_families(self.exposition.machine(), run_state.run, job_id)
            isolated = is_isolated(cluster, run_state.reported.settings)
            yield from cluster_families(
                cluster, run_state.run, active=run_state.is_active, isolated=isolated
            )

    def _case_families(self, run_state: RunState) -> Iterator[Family]:
        cases = exported_cases(run_state.alerts, self.exposition.clock())
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
        build = FamilyBuilder(sanitize_label(run_state.run))
        yield from case_families(build, shown, ended, run_state.time_of_step)

    def _delivery_family(self, run: str) -> Family:
        counts = {
            (sink, state): 0 for sink in self.exposition.sinks for state in ("retrying", "dead")
        }
        for problem in self.exposition.delivery_problems:
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
        state = self.exposition.storage()
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
            self.exposition.loop_seconds(),
        )
