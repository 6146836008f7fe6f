"""Prometheus families for the node's GPUs, processors, memory and disks."""

from __future__ import annotations

from collections.abc import Iterator

from prometheus_client.core import InfoMetricFamily
from prometheus_client.metrics_core import Metric

from sentinel.metrics.family_builders import gauge, run_gauge
from sentinel.metrics.label import sanitize_label
from sentinel.signals.catalogue import SIGNALS
from sentinel.signals.hardware import GPU_SIGNALS, HOST_SIGNALS, NodeMeasurements


def machine_families(machine: NodeMeasurements, run: str) -> Iterator[Metric]:
    """Families of the newest measurements; a part that returned none has no samples."""
    run = sanitize_label(run)
    yield gauge(
        "sentinel_machine_sample_timestamp_seconds",
        "Time of the last successful measurement of that part of the machine.",
        ("run", "part"),
        (((run, part), time) for part, time in sorted(machine.measured_at.items())),
    )
    for name in HOST_SIGNALS:
        if name in machine.host_values:
            yield run_gauge(*_metric_and_help(name), run, machine.host_values[name])
    yield gauge(
        *_metric_and_help("disk_free"),
        ("run", "stores"),
        (((run, stored), free) for stored, free in sorted(machine.free_bytes.items())),
    )
    yield from _gpu_families(machine, run)


def _gpu_families(machine: NodeMeasurements, run: str) -> Iterator[Metric]:
    info = InfoMetricFamily(
        "sentinel_gpu", "Name and UUID of the GPU, and the ranks on it.", labels=("run", "gpu")
    )
    for gpu in machine.gpus:
        ranks = ",".join(map(str, machine.ranks_by_gpu.get(gpu.index, ())))
        labels = {
            "name": sanitize_label(gpu.name),
            "uuid": sanitize_label(gpu.uuid),
            "ranks": sanitize_label(ranks),
        }
        info.add_metric((run, str(gpu.index)), labels)
    yield info
    yield gauge(
        "sentinel_gpu_up",
        "1 while the GPU answers; 0 if it fell off the bus.",
        ("run", "gpu"),
        (((run, str(gpu.index)), not gpu.is_lost) for gpu in machine.gpus),
    )
    for name in GPU_SIGNALS:
        samples = [
            ((run, str(gpu.index)), gpu.values[name]) for gpu in machine.gpus if name in gpu.values
        ]
        if samples:
            yield gauge(*_metric_and_help(name), ("run", "gpu"), samples)
    yield gauge(
        "sentinel_gpu_throttle_reason",
        "1 for each reason for which the GPU's clock is reduced.",
        ("run", "gpu", "reason"),
        (
            ((run, str(gpu.index), reason), 1.0)
            for gpu in machine.gpus
            for reason in gpu.throttle_reasons
        ),
    )


def _metric_and_help(name: str) -> tuple[str, str]:
    signal = SIGNALS[name]
    return signal.metric, signal.help
