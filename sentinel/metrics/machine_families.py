"""Prometheus families for the node's GPUs, processors, memory and disks."""

from __future__ import annotations

import os
from collections.abc import Iterator

from sentinel.metrics.family import Family, FamilyBuilder, sanitize_label
from sentinel.signals.catalogue import SIGNALS
from sentinel.signals.hardware import GPU_SIGNALS, HOST_SIGNALS, NodeMeasurements


def machine_families(
    machine: NodeMeasurements, run: str, scheduler_job: str = ""
) -> Iterator[Family]:
    """Families of the newest measurements; a part that returned none has no samples.

    `scheduler_job` is the id of the job of Slurm, if it is one.
    """
    build = FamilyBuilder(sanitize_label(run))
    yield build.gauge(
        "sentinel_machine_sample_timestamp_seconds",
        "Time of the last successful measurement of that part of the machine.",
        dict(sorted(machine.measured_at.items())),
        "part",
    )
    for name in HOST_SIGNALS:
        if name in machine.host_values:
            yield build.gauge(*_metric_and_help(name), machine.host_values[name])
    free_bytes = dict(sorted(machine.free_bytes.items()))
    yield build.gauge(*_metric_and_help("disk_free"), free_bytes, "stores")
    yield from _gpu_families(build, machine, scheduler_job)


def _gpu_families(
    build: FamilyBuilder, machine: NodeMeasurements, scheduler_job: str
) -> Iterator[Family]:
    rows, node, job = [], sanitize_label(os.uname().nodename), sanitize_label(scheduler_job)
    for gpu in machine.gpus:
        ranks = ",".join(map(str, machine.ranks_by_gpu.get(gpu.index, ())))
        texts = map(sanitize_label, (gpu.name, gpu.uuid, ranks))
        rows.append((str(gpu.index), node, job, *texts))
    yield build.info(
        "sentinel_gpu",
        "Node, job of Slurm, name and UUID of the GPU, and the ranks on it.",
        rows,
        "gpu",
        "node",
        "scheduler_job",
        "name",
        "uuid",
        "ranks",
    )
    gpus = {str(gpu.index): gpu for gpu in machine.gpus}
    yield build.gauge(
        "sentinel_gpu_up",
        "1 while the GPU answers; 0 if it fell off the bus.",
        {index: not gpu.is_lost for index, gpu in gpus.items()},
        "gpu",
    )
    for name in GPU_SIGNALS:
        values = {index: gpu.values[name] for index, gpu in gpus.items() if name in gpu.values}
        if values:
            yield build.gauge(*_metric_and_help(name), values, "gpu")
    yield build.gauge(
        "sentinel_gpu_throttle_reason",
        "1 for each reason for which the GPU's clock is reduced.",
        {(index, reason): 1.0 for index, gpu in gpus.items() for reason in gpu.throttle_reasons},
        "gpu",
        "reason",
    )


def _metric_and_help(name: str) -> tuple[str, str]:
    signal = SIGNALS[name]
    return signal.metric, signal.help
