"""Machine families: the node's GPUs, processors, memory and disks for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from sentinel.metrics.label import sanitize_label
from sentinel.signals.catalogue import SIGNALS
from sentinel.signals.hardware import GPU_SIGNALS, HOST_SIGNALS, NodeMeasurements

LabelledValue = tuple[tuple[str, ...], float]


def machine_families(machine: NodeMeasurements, run: str) -> Iterator[Metric]:
    """What is known of the node now; a part that says nothing has no samples."""
    run = sanitize_label(run)
    yield _gauge(
        "sentinel_machine_sample_timestamp_seconds",
        "When that part of the machine last answered.",
        ("run", "part"),
        (((run, part), at) for part, at in sorted(machine.measured_at.items())),
    )
    for name in HOST_SIGNALS:
        if name in machine.host_values:
            yield _gauge(*_metric_and_help(name), ("run",), [((run,), machine.host_values[name])])
    yield _gauge(
        *_metric_and_help("disk_free"),
        ("run", "keeps"),
        (((run, keeps), free) for keeps, free in sorted(machine.free_bytes.items())),
    )
    yield from _gpu_families(machine, run)


def _gpu_families(machine: NodeMeasurements, run: str) -> Iterator[Metric]:
    info = InfoMetricFamily(
        "sentinel_gpu", "Which GPU it is, and the ranks on it.", labels=("run", "gpu")
    )
    for gpu in machine.gpus:
        ranks = ",".join(map(str, machine.ranks_by_gpu.get(gpu.index, ())))
        told = {
            "name": sanitize_label(gpu.name),
            "uuid": sanitize_label(gpu.uuid),
            "ranks": sanitize_label(ranks),
        }
        info.add_metric((run, str(gpu.index)), told)
    yield info
    yield _gauge(
        "sentinel_gpu_up",
        "1 while the GPU answers; 0 where it fell off its bus.",
        ("run", "gpu"),
        (((run, str(gpu.index)), not gpu.is_lost) for gpu in machine.gpus),
    )
    for name in GPU_SIGNALS:
        rows = [
            ((run, str(gpu.index)), gpu.values[name]) for gpu in machine.gpus if name in gpu.values
        ]
        if rows:
            yield _gauge(*_metric_and_help(name), ("run", "gpu"), rows)
    yield _gauge(
        "sentinel_gpu_throttle_reason",
        "1 for each reason for which the GPU's clock is held down now.",
        ("run", "gpu", "reason"),
        (((run, str(gpu.index), why), 1.0) for gpu in machine.gpus for why in gpu.throttle_reasons),
    )


def _metric_and_help(name: str) -> tuple[str, str]:
    signal = SIGNALS[name]
    return signal.metric, signal.help


def _gauge(name: str, help_: str, labels: tuple[str, ...], rows: Iterable[LabelledValue]) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family
