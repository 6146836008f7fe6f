"""Sample exposition: a run that exports every metric family, as input of the reference page."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from sentinel.metrics.cluster_families import cluster_families
from sentinel.metrics.collector import RunCollector
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import COUNTER_FAMILIES, Counters
from sentinel.model.diagnosis import Diagnosis
from sentinel.model.finding import Finding, Severity
from sentinel.model.incident import Incident, IncidentKey
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import Result, Threshold
from sentinel.signals.hardware import GPU_SIGNALS, HOST_SIGNALS, Gpu, NodeMeasurements
from sentinel.signals.kl import KlKind, kl_kind_attribute

_KL_KIND = KlKind("ref", "k3", "token_mean", signed=False)

SAMPLE_NODE = NodeMeasurements(
    host_values=dict.fromkeys(HOST_SIGNALS, 1.0),
    free_bytes={"checkpoints": 1.0},
    gpus=(Gpu(0, "GPU-0", "a GPU", dict.fromkeys(GPU_SIGNALS, 1.0), ("heat",)),),
    ranks_by_gpu={0: (0,)},
    measured_at={"host": 1.0},
)
"""A node with one measurement of each kind."""

HEAD_STATUS = {"role": "head", "port": 14000, "head": "any:14000", "nodes": [{"state": "up"}]}
FOLLOWER_STATUS = {"role": "follower", "head": "any:14000", "connected": True, "spooled_bytes": 0}
"""Cluster state of the two roles of an agent in a run on several nodes."""


def sample_metrics() -> Iterator[Metric]:
    """Every family of `/metrics` except those of signals, with at least one sample each."""
    counters = Counters()
    for count in COUNTER_FAMILIES:
        counters.add(count.family, "any")
    exposition = Exposition(
        counters,
        {"any": Severity.WARNING},
        machine=lambda: SAMPLE_NODE,
        cluster_status=lambda: HEAD_STATUS,
        sinks=("any",),
    )
    for record in _sample_records():
        exposition.update(Result(record))
    exposition.update(_incident_result())
    families = list(RunCollector(exposition).collect())
    names = {family.name for family in families}
    follower = cluster_families(FOLLOWER_STATUS, "run")
    yield from [*families, *(family for family in follower if family.name not in names)]


def _incident_result() -> Result:
    """A result that opens an incident with a named cause."""
    finding = Finding("A finding.")
    incident = Incident(
        IncidentKey("run", WHOLE_RUN, "any"), 1, Severity.WARNING, "loss", "Do.", finding, 1, 1, 1.0
    )
    incident.last_good_step = 0
    diagnosis = Diagnosis("any", "any", 1.0, None, (), "Do.")
    notification = Notification(NotificationReason.OPENED, incident, 1, 1.0, diagnosis=diagnosis)
    return Result(
        Record("run", WHOLE_RUN, 1, 1.0, Event.PHASE),
        notifications=(notification,),
        case_notifications=(notification,),
        thresholds={"any": Threshold("global_step", 1.0)},
    )


def _sample_records() -> Iterator[Record]:
    attributes = {"framework": "any", "patch/any": "on"}
    yield Record("run", 0, 0, 1.0, Event.START, {"save_steps": 1.0}, attributes)
    yield Record("run", 0, 1, 1.0, Event.STEP, {"step_time": 1.0})
    values = {"global_step": 1.0, "kl_ref": 1.0, "anything": 1.0}
    yield Record(
        "run",
        WHOLE_RUN,
        1,
        1.0,
        Event.STEP,
        values,
        {kl_kind_attribute("kl_ref"): _KL_KIND.serialize()},
    )
    yield Record("run", WHOLE_RUN, 1, 1.0, Event.SAVE)
    liveness = dict.fromkeys(("ranks_running", "ranks_gone", "ranks_failed"), 1.0)
    yield Record("run", WHOLE_RUN, 1, 1.0, Event.HEARTBEAT, liveness)
