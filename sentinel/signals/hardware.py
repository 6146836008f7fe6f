"""Measurements of a node's hardware, and the values that represent the whole run.

Ratios are between 0 and 1, memory and disks in bytes, throughput in bytes per second, power in
watts, temperature in degrees Celsius.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from statistics import fmean

from sentinel.signals.catalogue import SIGNALS, CombineRule, get_combine_rule

GPU_SIGNALS = tuple(name for name, signal in SIGNALS.items() if signal.entity == "gpu")
"""Measured per GPU, if the driver reports them."""

HOST_SIGNALS = tuple(name for name, signal in SIGNALS.items() if signal.entity == "host")
"""Measured per node."""

NODE_SIGNALS = frozenset({*GPU_SIGNALS, *HOST_SIGNALS, "disk_free"})
"""Signals that the agent measures itself, independent of training steps."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One measurement of a GPU; `index` is its number on the node.

    `throttle_reasons` are the reasons for a reduced clock. `pids` are the processes that compute on
    it, as far as the driver knows their numbers in this PID namespace.
    """

    index: int
    uuid: str = ""
    name: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    throttle_reasons: tuple[str, ...] = ()
    pids: frozenset[int] = frozenset()

    @property
    def is_lost(self) -> bool:
        """Whether it answers no query, as after falling off the bus; XIDs come from the kernel."""
        return self.values.keys() <= {"gpu_xid"}


@dataclass(frozen=True, slots=True)
class NodeMeasurements:
    """The newest measurements of a node; `measured_at` is when each part was measured, in seconds.

    `free_bytes` are by what the run stores on the disk. `ranks_by_gpu` are the ranks that compute
    on each GPU.
    """

    host_values: Mapping[str, float] = field(default_factory=dict)
    free_bytes: Mapping[str, float] = field(default_factory=dict)
    gpus: Sequence[Gpu] = ()
    ranks_by_gpu: Mapping[int, Sequence[int]] = field(default_factory=dict)
    measured_at: Mapping[str, float] = field(default_factory=dict)

    def heartbeat_values(self) -> dict[str, float]:
        """The hardware values of a heartbeat.

        A GPU signal is combined over the run's GPUs by its rule in the catalogue, with the extremes
        as `<signal>_min` and `<signal>_max`. Each disk is `disk_free_<name>`, the fullest one is
        `disk_free`. `gpu_ranks` counts the ranks that compute on a GPU; if it is 0, it is unknown
        whether the GPUs are the run's.
        """
        values = dict(self.host_values)
        if self.gpus:
            ranks = {rank for of_gpu in self.ranks_by_gpu.values() for rank in of_gpu}
            values["gpu_ranks"] = float(len(ranks))
        for name in GPU_SIGNALS:
            of_gpus = [gpu.values[name] for gpu in self.gpus if name in gpu.values]
            if of_gpus:
                values[name] = _REDUCERS.get(get_combine_rule(name), fmean)(of_gpus)
                values[f"{name}_min"], values[f"{name}_max"] = min(of_gpus), max(of_gpus)
        if self.free_bytes:
            values["disk_free"] = min(self.free_bytes.values())
            values |= {f"disk_free_{name}": free for name, free in self.free_bytes.items()}
        return values


def select_run_gpus(
    gpus: Sequence[Gpu], wanted: Collection[str] | None, pids: Collection[int]
) -> list[Gpu]:
    """The GPUs that the run computes on.

    These are the GPUs with a process of `pids`; if there are none, those `wanted` by number or
    UUID, or all if `wanted` is None.
    """
    used = [gpu for gpu in gpus if not gpu.pids.isdisjoint(pids)]
    if used or wanted is None:
        return used or list(gpus)
    return [gpu for gpu in gpus if any(_matches_gpu(gpu, name) for name in wanted)]


def _matches_gpu(gpu: Gpu, name: str) -> bool:
    # CUDA accepts any unambiguous prefix of a UUID.
    return name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))


_REDUCERS: Mapping[CombineRule, Callable[[Sequence[float]], float]] = {
    CombineRule.SUM: fsum,
    CombineRule.MAX: max,
    CombineRule.MIN: min,
}
