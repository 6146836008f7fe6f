"""Machine: the node's GPUs, processors, memory and disks, looked at beside the agent's loop.

Each part has a thread of its own, since a driver or a file server may hang: then that part ages,
and everything else goes on. The loop only ever takes what is there.
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
from sentinel.model.counters import Counters
from sentinel.signals.hardware import Gpu, NodeMeasurements, select_run_gpus

MAX_MISSED_READS = 6
"""Looks missed in a row after which what a part last said is no longer the present."""

MIN_FRESH_SECONDS = 30.0
"""What is younger than this is the present, however often it is looked for."""

OUTPUT_DIR_SETTINGS = ("output_dir", "default_local_dir", "default_root_dir")
"""What frameworks call the folder that checkpoints go to."""


def output_dir(metadata: Mapping[str, object]) -> Path | None:
    """Where a run that says this of itself writes its checkpoints, if that is an absolute path."""
    for name in OUTPUT_DIR_SETTINGS:
        told = metadata.get(name)
        if isinstance(told, str) and told.startswith("/") and "\0" not in told:
            return Path(told)
    return None


@dataclass
class NodeMetrics:
    """Looks at this node every `seconds`; 0 for never.

    `state` is the folder of the run, `output` gives that of its checkpoints once it is known, and
    `pids` the ranks' processes by rank. `clock` gives seconds since the epoch.
    """

    interval_seconds: float
    counters: Counters
    run_directory: Path
    find_output_dir: Callable[[], Path | None] = lambda: None
    rank_pids: Callable[[], Mapping[int, int]] = dict
    clock: Callable[[], float] = time.time
    nvml: NvmlReader = field(default_factory=NvmlReader)
    host: HostReader = field(default_factory=HostReader)
    _reported_read_times: Mapping[str, float] = field(default_factory=dict)
    _reported_at: float = 0.0

    def __post_init__(self) -> None:
        looks: dict[str, Callable[[], Any]] = {
            "gpu": self._read_gpus,
            "host": self.host.read,
            "state": lambda: free_bytes(self.run_directory),
            "output": self._output_free_bytes,
        }
        self.pollers = {
            part: MetricPoller(part, look, self.interval_seconds, self.counters, self.clock)
            for part, look in looks.items()
        }

    def start(self) -> None:
        """Begin to look, unless it was asked not to."""
        for watch in self.pollers.values() if self.interval_seconds > 0 else ():
            watch.start()

    def stop(self) -> None:
        """Look no more."""
        for watch in self.pollers.values():
            watch.stop()

    def latest(self) -> NodeMeasurements:
        """What is known of the present; a part that has not answered for long is left out."""
        oldest = self.clock() - max(MIN_FRESH_SECONDS, MAX_MISSED_READS * self.interval_seconds)
        found = {part: watch.latest for part, watch in self.pollers.items()}
        known = {part: seen for part, seen in found.items() if seen is not None}
        fresh = {part: told for part, (at, told) in known.items() if at >= oldest}
        gpus, ranks = fresh.get("gpu", ((), {}))
        disks = {part: fresh[part] for part in ("state", "output") if fresh.get(part) is not None}
        seen = {part: at for part, (at, _) in known.items()}
        return NodeMeasurements(fresh.get("host", {}), disks, gpus, ranks, seen)

    def new_values(self) -> dict[str, float]:
        """What a record is to tell of the machine: every `seconds`, if anything was seen since."""
        time, machine = self.clock(), self.latest()
        if (
            machine.measured_at == self._reported_read_times
            or 0.0 <= time - self._reported_at < self.interval_seconds
        ):
            return {}
        self._reported_at, self._reported_read_times = time, machine.measured_at
        return machine.heartbeat_values()

    def _read_gpus(self) -> tuple[list[Gpu], dict[int, list[int]]]:
        """The GPUs that the run computes on, and by their number the ranks that do."""
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
    """The GPUs that these processes were given; None if any of them was not told."""
    given = [_cuda_visible_devices(pid) for pid in pids]
    told = [names for names in given if names is not None]
    wanted = {name for names in told for name in names}
    # A slice of a GPU does not say of which.
    sliced = any(name.startswith("MIG-") for name in wanted)
    return wanted if told and len(told) == len(given) and not sliced else None


def _cuda_visible_devices(pid: int) -> list[str] | None:
    """What CUDA_VISIBLE_DEVICES was when that process began; None where it was not set."""
    try:
        environ = Path(f"/proc/{pid}/environ").read_bytes()
    except OSError:
        return None
    for word in environ.split(b"\0"):
        name, _, value = word.partition(b"=")
        if name == b"CUDA_VISIBLE_DEVICES":
            return [each.strip() for each in value.decode(errors="replace").split(",")]
    return None
