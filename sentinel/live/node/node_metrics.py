"""Measurements of the node's GPUs, processors, memory, network and disks.

They are taken beside the agent's loop. Each part has its own thread, since a driver or a file
server may hang: only that part then becomes stale. The loop reads the latest results and never
waits.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.live.node.host import HostReader, free_bytes
from sentinel.live.node.nvml import NvmlReader
from sentinel.live.node.poller import MetricPoller
from sentinel.live.node.throughput import ThroughputReader
from sentinel.model.counters import Counters
from sentinel.signals.hardware import Gpu, NodeMeasurements, select_run_gpus
from sentinel.transport.process import read_environ

MAX_MISSED_READS = 6
"""Missed reads after which a part's last result is stale."""

MIN_FRESH_SECONDS = 30.0
"""A result younger than this is never stale, whatever the interval."""

OUTPUT_DIR_SETTINGS = ("output_dir", "default_local_dir", "default_root_dir")
"""Settings of frameworks that name the checkpoint directory."""


def output_dir(metadata: Mapping[str, object]) -> Path | None:
    """The checkpoint directory in a run's metadata, if it is an absolute path."""
    for name in OUTPUT_DIR_SETTINGS:
        value = metadata.get(name)
        if isinstance(value, str) and value.startswith("/") and "\0" not in value:
            return Path(value)
    return None


@dataclass
class NodeMetrics:
    """Measures this node every `interval_seconds`; 0 disables it.

    `run_directory` is the run's directory, `find_output_dir` returns the checkpoint directory once
    it is known, `rank_pids` the pids by rank. `clock` returns seconds since the epoch.
    """

    interval_seconds: float
    counters: Counters
    run_directory: Path
    find_output_dir: Callable[[], Path | None] = lambda: None
    rank_pids: Callable[[], Mapping[int, int]] = dict
    clock: Callable[[], float] = time.time
    nvml: NvmlReader = field(default_factory=NvmlReader)
    host: HostReader = field(default_factory=HostReader)
    throughput: ThroughputReader = field(default_factory=ThroughputReader)
    _reported_read_times: Mapping[str, float] = field(default_factory=dict)
    _reported_at: float = 0.0

    def __post_init__(self) -> None:
        readers: dict[str, Callable[[], Any]] = {
            "gpu": self._read_gpus,
            "host": self.host.read,
            "io": self.throughput.read,
            "state": lambda: free_bytes(self.run_directory),
            "output": self._output_free_bytes,
        }
        self.pollers = {
            part: MetricPoller(part, read, self.interval_seconds, self.counters, self.clock)
            for part, read in readers.items()
        }

    def start(self) -> None:
        """Start the threads, unless measuring is disabled."""
        for poller in self.pollers.values() if self.interval_seconds > 0 else ():
            poller.start()

    def stop(self) -> None:
        """Stop the threads, without waiting for them."""
        for poller in self.pollers.values():
            poller.stop()

    def latest(self) -> NodeMeasurements:
        """The latest measurements, without parts whose result is stale."""
        oldest = self.clock() - max(MIN_FRESH_SECONDS, MAX_MISSED_READS * self.interval_seconds)
        results = {
            part: poller.latest
            for part, poller in self.pollers.items()
            if poller.latest is not None
        }
        fresh = {part: values for part, (at, values) in results.items() if at >= oldest}
        gpus, ranks = fresh.get("gpu", ((), {}))
        disks = {part: fresh[part] for part in ("state", "output") if fresh.get(part) is not None}
        measured_at = {part: at for part, (at, _) in results.items()}
        host = {**fresh.get("host", {}), **fresh.get("io", {})}
        return NodeMeasurements(host, disks, gpus, ranks, measured_at)

    def new_values(self) -> dict[str, float]:
        """Values for the next heartbeat, once an interval, if there are new measurements."""
        now, measurements = self.clock(), self.latest()
        if (
            measurements.measured_at == self._reported_read_times
            or 0.0 <= now - self._reported_at < self.interval_seconds
        ):
            return {}
        self._reported_at, self._reported_read_times = now, measurements.measured_at
        return measurements.heartbeat_values()

    def _read_gpus(self) -> tuple[list[Gpu], dict[int, list[int]]]:
        """The GPUs that the run uses, and by GPU index the ranks that use them."""
        pids = dict(self.rank_pids())
        ranks = {pid: rank for rank, pid in pids.items()}
        gpus = select_run_gpus(self.nvml.read_gpus(), _assigned_gpus(pids.values()), ranks)
        return gpus, {
            gpu.index: sorted(ranks[pid] for pid in gpu.pids & ranks.keys()) for gpu in gpus
        }

    def _output_free_bytes(self) -> float | None:
        directory = self.find_output_dir()
        return None if directory is None else free_bytes(directory)


def _assigned_gpus(pids: Iterable[int]) -> set[str] | None:
    """The GPUs assigned to these processes; None if that is not known for all of them."""
    assigned = [_cuda_visible_devices(pid) for pid in pids]
    known = [names for names in assigned if names is not None]
    gpus = {name for names in known for name in names}
    # The name of a MIG slice does not show which GPU it is part of.
    has_slices = any(name.startswith("MIG-") for name in gpus)
    return gpus if known and len(known) == len(assigned) and not has_slices else None


def _cuda_visible_devices(pid: int) -> list[str] | None:
    """CUDA_VISIBLE_DEVICES of a process at its start; None if it was not set."""
    devices = read_environ(pid).get("CUDA_VISIBLE_DEVICES")
    return None if devices is None else [name.strip() for name in devices.split(",")]
