"""One hour of a failing run and of a healthy one, as Prometheus would have scraped them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from dataclasses import replace
from socket import gethostname

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.utils import floatToGoString
from support.results import DIAGNOSIS, RUN, make_incident, make_result, make_spread

from sentinel.config.plugins import load_classes
from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import COUNTER_FAMILIES, Counters
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import Event, Record
from sentinel.pipeline.engine import Result, Threshold
from sentinel.signals.catalogue import SIGNALS
from tools.generate.detector_docs import detector_docs
from tools.generate.sample_exposition import HEAD_STATUS, SAMPLE_NODE

HEALTHY_RUN = "sft-1b"
START = 1_700_000_000.0
SCRAPE_SECONDS = 30.0
SCRAPES = 120
RANKS = 8
SLOW_RANK = 5
SAVE_SECONDS = 10.0
NODE = "gpu-1"
END = START + SCRAPE_SECONDS * (SCRAPES - 1)
SETTINGS = {"world_size": float(RANKS), "beta": 0.04}
PATCHES = {"patch/trl": "on"}
THRESHOLDS = {
    doc.name: Threshold(doc.signal.name, 1.0) for doc in detector_docs() if doc.signal is not None
}
"""A threshold of every detector that evaluates a signal of the catalogue."""

DCGM_FIELDS = (
    *("PROF_PIPE_TENSOR_ACTIVE", "PROF_SM_ACTIVE", "PROF_DRAM_ACTIVE", "PROF_NVLINK_TX_BYTES"),
    *("PROF_NVLINK_RX_BYTES", "DEV_POWER_USAGE", "DEV_MEMORY_TEMP"),
)
NODE_COUNTERS = (
    *("pressure_memory_waiting_seconds", "pressure_io_waiting_seconds"),
    *("network_receive_errs", "network_transmit_errs"),
)


def openmetrics() -> str:
    """The hour as one OpenMetrics text with timestamps."""
    lines: dict[tuple[str, str, str], list[str]] = defaultdict(list)
    counters = Counters()
    detectors = {name: kind.severity for name, kind in load_classes("detectors").items()}
    exposition = Exposition(
        counters, detectors, machine=lambda: SAMPLE_NODE, cluster_status=lambda: HEAD_STATUS
    )
    healthy_counters = Counters()
    healthy = Exposition(healthy_counters, detectors)
    for scrape in range(SCRAPES):
        time = START + SCRAPE_SECONDS * scrape
        for result in _results(scrape, counters):
            exposition.update(result)
        for result in _healthy_results(scrape, healthy_counters):
            healthy.update(result)
        targets = {"gpu-1": exposition.registry.collect(), "gpu-2": healthy.registry.collect()}
        targets[""] = _families_of_others(scrape)
        for node, families in targets.items():
            added = {"job": "sentinel", "instance": f"{node}:13121"} if node else {}
            for family in families:
                key = family.name, family.type, family.documentation
                lines[key] += [_line(sample, time, added) for sample in family.samples]
    return "\n".join([*_families(lines), "# EOF\n"])


def _results(scrape: int, counters: Counters) -> Iterator[Result]:
    """All ranks train, one of them slowly; then KL blows up, with a cause, and one rank dies."""
    time = START + SCRAPE_SECONDS * scrape
    if scrape == 0:
        yield make_result(Event.START, rank=0, values=SETTINGS, attributes=PATCHES, time=time)
    for count in COUNTER_FAMILIES:
        counters.add(count.family, f"a {count.label}", scrape % 3)
    counters.add("sentinel_sink_deliveries_total", "slack:delivered", scrape == SCRAPES // 2)
    values = {name: scrape / 10 for name in SIGNALS if name != "global_step"}
    ranges = {name: make_spread(value / 2, value * 2) for name, value in values.items()}
    logged = {**values, "mine": 1.0, "rewards/format/mean": 0.5}
    result = make_result(step=scrape, time=time, values=logged, spread=ranges)
    yield replace(result, thresholds=THRESHOLDS)
    for rank in range(RANKS):
        step_time = 1.5 if rank == SLOW_RANK else 0.5
        yield make_result(step=scrape, rank=rank, time=time, values={"step_time": step_time})
    if scrape % 40 == 39:
        yield make_result(Event.SAVE, step=scrape, time=time + SAVE_SECONDS)
    if scrape == SCRAPES // 2:
        notification = Notification(
            NotificationReason.OPENED, make_incident(), scrape, time, diagnosis=DIAGNOSIS
        )
        yield Result(
            Record(RUN, -1, scrape, time),
            notifications=(notification,),
            case_notifications=(notification,),
        )
    gone = float(scrape >= SCRAPES - 5)
    liveness = {"ranks_running": RANKS - gone, "ranks_gone": gone, "ranks_failed": 0.0}
    yield make_result(Event.HEARTBEAT, step=scrape, time=time, values=liveness)
    if scrape == SCRAPES - 5:
        yield make_result(Event.STOP, step=scrape, rank=1, attributes={"outcome": "died"})


def _healthy_results(scrape: int, counters: Counters) -> Iterator[Result]:
    """A second run of one rank, without alerts, RL or GPU."""
    time = START + SCRAPE_SECONDS * scrape
    if scrape == 0:
        yield _renamed(make_result(Event.START, rank=0, values={"world_size": 1.0}, time=time))
    counters.set("sentinel_client_overhead_seconds_total", "0", 1e-4 * scrape)
    counters.add("sentinel_sink_deliveries_total", "slack:delivered", 0.0)
    yield _renamed(make_result(step=scrape, time=time, values={"loss": 99.0}))
    yield _renamed(make_result(Event.HEARTBEAT, time=time, values={"ranks_running": 1.0}))


def _renamed(result: Result) -> Result:
    return replace(result, record=replace(result.record, run=HEALTHY_RUN))


def _families_of_others(scrape: int) -> Iterator[Metric]:
    """What Prometheus itself and the exporters of DCGM and of the node add."""
    target = {"job": "sentinel", "instance": f"{NODE}:13121"}
    for name in ("up", "scrape_duration_seconds", "scrape_samples_scraped"):
        yield _family(GaugeMetricFamily, name, target, 1.0)
    for name in DCGM_FIELDS:
        (gpu,) = SAMPLE_NODE.gpus
        labels = {"UUID": gpu.uuid, "gpu": "0", "Hostname": NODE, "instance": f"{NODE}:9400"}
        yield _family(GaugeMetricFamily, f"DCGM_FI_{name}", labels, 0.5)
    host = {"instance": f"{NODE}:9100"}
    yield _family(GaugeMetricFamily, "node_uname_info", host | {"nodename": gethostname()}, 1.0)
    for name in NODE_COUNTERS:
        yield _family(CounterMetricFamily, f"node_{name}", host, float(scrape))


def _family(kind: type[Metric], name: str, labels: Mapping[str, str], value: float) -> Metric:
    family = kind(name, "Of another exporter.", labels=tuple(labels))
    family.add_metric(tuple(labels.values()), value)
    return family


def _line(sample, time: float, added: Mapping[str, str]) -> str:
    pairs = sorted({**sample.labels, **added}.items())
    labels = ",".join(f'{name}="{value}"' for name, value in pairs)
    return f"{sample.name}{{{labels}}} {floatToGoString(sample.value)} {time}"


def _families(lines: dict[tuple[str, str, str], list[str]]) -> Iterator[str]:
    for (name, kind, text), samples in lines.items():
        yield f"# TYPE {name} {kind}"
        yield f"# HELP {name} {text}"
        yield from sorted(samples, key=lambda line: line.rpartition("}")[0])
