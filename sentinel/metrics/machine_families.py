"""Machine families: the node's GPUs, processors, memory and disks for Prometheus."""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from prometheus_client.core import GaugeMetricFamily, InfoMetricFamily
from prometheus_client.metrics_core import Metric

from sentinel.metrics.label import label
from sentinel.model.hardware import GPU_SIGNALS, HOST_SIGNALS, Machine
from sentinel.signals.catalogue import SIGNALS

Row = tuple[tuple[str, ...], float]


def machine_families(machine: Machine, run: str) -> Iterator[Metric]:
    """What is known of the node now; a part that says nothing has no samples."""
    run = label(run)
    yield _gauge(
        "sentinel_machine_sample_timestamp_seconds",
        "When that part of the machine last answered.",
        ("run", "part"),
        (((run, part), at) for part, at in sorted(machine.seen.items())),
    )
    for name in HOST_SIGNALS:
        if name in machine.host:
            yield _gauge(*_named(name), ("run",), [((run,), machine.host[name])])
    yield _gauge(
        *_named("disk_free"),
        ("run", "keeps"),
        (((run, keeps), free) for keeps, free in sorted(machine.disks.items())),
    )
    yield from _about_gpus(machine, run)


def _about_gpus(machine: Machine, run: str) -> Iterator[Metric]:
    info = InfoMetricFamily(
        "sentinel_gpu", "Which GPU it is, and the ranks on it.", labels=("run", "gpu")
    )
    for gpu in machine.gpus:
        ranks = ",".join(map(str, machine.ranks.get(gpu.index, ())))
        told = {"name": label(gpu.name), "uuid": label(gpu.uuid), "ranks": label(ranks)}
        info.add_metric((run, str(gpu.index)), told)
    yield info
    yield _gauge(
        "sentinel_gpu_up",
        "1 while the GPU answers; 0 where it fell off its bus.",
        ("run", "gpu"),
        (((run, str(gpu.index)), not gpu.lost) for gpu in machine.gpus),
    )
    for name in GPU_SIGNALS:
        rows = [
            ((run, str(gpu.index)), gpu.values[name]) for gpu in machine.gpus if name in gpu.values
        ]
        if rows:
            yield _gauge(*_named(name), ("run", "gpu"), rows)
    yield _gauge(
        "sentinel_gpu_throttle_reason",
        "1 for each reason for which the GPU's clock is held down now.",
        ("run", "gpu", "reason"),
        (((run, str(gpu.index), why), 1.0) for gpu in machine.gpus for why in gpu.throttled),
    )


def _named(name: str) -> tuple[str, str]:
    signal = SIGNALS[name]
    return signal.metric, signal.help


def _gauge(name: str, help_: str, labels: tuple[str, ...], rows: Iterable[Row]) -> Metric:
    family = GaugeMetricFamily(name, help_, labels=labels)
    for values, number in rows:
        family.add_metric(values, number)
    return family
