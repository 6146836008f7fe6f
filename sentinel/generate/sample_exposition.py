"""Everything: a run that shows each family there can be, so that a page can list them."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.metrics_core import Metric

from sentinel.metrics.cluster_families import cluster_families
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import COUNTS, Tally
from sentinel.model.diagnosis import Diagnosis
from sentinel.model.finding import Finding, Severity
from sentinel.model.hardware import GPU_SIGNALS, HOST_SIGNALS, Gpu, Machine
from sentinel.model.incident import Incident, Key, Page, Reason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import Verdict
from sentinel.signals.kl import KlKind, fact_of

_KIND = KlKind("ref", "k3", "token_mean", signed=False)

MACHINE = Machine(
    host=dict.fromkeys(HOST_SIGNALS, 1.0),
    disks={"checkpoints": 1.0},
    gpus=(Gpu(0, "GPU-0", "a GPU", dict.fromkeys(GPU_SIGNALS, 1.0), ("heat",)),),
    ranks={0: (0,)},
    seen={"host": 1.0},
)
"""A node with one of everything."""

HEAD = {"role": "head", "port": 14000, "head": "any:14000", "nodes": [{"state": "up"}]}
POST = {"role": "post", "head": "any:14000", "linked": True, "spooled_bytes": 0}
"""The two parts that agents of a run on several nodes have."""


def everything() -> Iterator[Metric]:
    """Every family of `/metrics` but those of signals, each with a sample."""
    tally = Tally()
    for count in COUNTS:
        tally.add(count.family, "any")
    shown = Exposition(tally, {"any": Severity.WARNING}, machine=lambda: MACHINE)
    shown.cluster = lambda: HEAD
    for record in _records():
        shown.take(Verdict(record))
    shown.take(_told())
    known = list(shown.collect())
    names = {family.name for family in known}
    others = cluster_families(POST, "run")
    yield from [*known, *(family for family in others if family.name not in names)]


def _told() -> Verdict:
    """An incident whose cause has a name."""
    finding = Finding("It is so.")
    incident = Incident(
        Key("run", WHOLE_RUN, "any"), 1, Severity.WARNING, "loss", "Do.", finding, 1, 1, 1.0
    )
    diagnosis = Diagnosis("any", "any", 1.0, None, (), "Do.")
    page = Page(Reason.OPENED, incident, 1, 1.0, diagnosis=diagnosis)
    return Verdict(Record("run", WHOLE_RUN, 1, 1.0, Event.PHASE), pages=(page,), told=(page,))


def _records() -> Iterator[Record]:
    about = {"framework": "any", "tap/any": "on"}
    yield Record("run", 0, 0, 1.0, Event.START, {"save_steps": 1.0}, about)
    yield Record("run", 0, 1, 1.0, Event.STEP, {"step_time": 1.0})
    values = {"global_step": 1.0, "kl_ref": 1.0, "anything": 1.0}
    yield Record("run", WHOLE_RUN, 1, 1.0, Event.STEP, values, {fact_of("kl_ref"): _KIND.told()})
    yield Record("run", WHOLE_RUN, 1, 1.0, Event.SAVE)
    alive = dict.fromkeys(("ranks_running", "ranks_gone", "ranks_failed"), 1.0)
    yield Record("run", WHOLE_RUN, 1, 1.0, Event.TICK, alive)
