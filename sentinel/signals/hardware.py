"""Hardware: what the agent saw of its node, and what of it speaks for the whole run.

Shares are of 1, memory and disks in bytes, power in watts, temperature in degrees Celsius.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum
from statistics import fmean

from sentinel.signals.catalogue import SIGNALS, CombineRule, get_combine_rule

GPU_SIGNALS = tuple(name for name, signal in SIGNALS.items() if signal.entity == "gpu")
"""Measured of each GPU, if its driver tells."""

HOST_SIGNALS = tuple(name for name, signal in SIGNALS.items() if signal.entity == "host")
"""Measured of the node."""

NODE_SIGNALS = frozenset({*GPU_SIGNALS, *HOST_SIGNALS, "disk_free"})
"""Signals that the agent measures itself, at its own pace, step or no step."""


@dataclass(frozen=True, slots=True)
class Gpu:
    """One GPU at one moment: its number on the node, and what was measured of it.

    `throttled` are the reasons for which its clock is held down. `pids` are the processes that
    compute on it, as far as the driver knows their numbers in our name space.
    """

    index: int
    uuid: str = ""
    name: str = ""
    values: Mapping[str, float] = field(default_factory=dict)
    throttle_reasons: tuple[str, ...] = ()
    pids: frozenset[int] = frozenset()

    @property
    def is_lost(self) -> bool:
        """Whether it answers nothing, as one that fell off its bus: an XID is what others say."""
        return self.values.keys() <= {"gpu_xid"}


@dataclass(frozen=True, slots=True)
class NodeMeasurements:
    """The newest that is known of a node. `seen` is when each part was looked at, in seconds.

    `ranks` tells which ranks compute on a GPU. `disks` are bytes free, by what the run keeps there.
    """

    host_values: Mapping[str, float] = field(default_factory=dict)
    free_bytes: Mapping[str, float] = field(default_factory=dict)
    gpus: Sequence[Gpu] = ()
    ranks_by_gpu: Mapping[int, Sequence[int]] = field(default_factory=dict)
    measured_at: Mapping[str, float] = field(default_factory=dict)

    def heartbeat_values(self) -> dict[str, float]:
        """What a TICK tells of the machine.

        A GPU signal is gathered over the run's GPUs as the catalogue says, with its extremes under
        `<signal>_min` and `<signal>_max`. Each disk is `disk_free_<what>`, and
        the fullest is `disk_free`. `gpu_ranks` counts the ranks that were seen to compute on a GPU;
        where it is 0, nobody knows whether the GPUs are the run's at all.
        """
        told = dict(self.host_values)
        if self.gpus:
            told["gpu_ranks"] = float(
                len({rank for on in self.ranks_by_gpu.values() for rank in on})
            )
        for name in GPU_SIGNALS:
            found = [gpu.values[name] for gpu in self.gpus if name in gpu.values]
            if found:
                gathered = _REDUCERS.get(get_combine_rule(name), fmean)(found)
                told |= {name: gathered, f"{name}_min": min(found), f"{name}_max": max(found)}
        if self.free_bytes:
            told["disk_free"] = min(self.free_bytes.values())
            told |= {f"disk_free_{what}": free for what, free in self.free_bytes.items()}
        return told


def select_run_gpus(
    gpus: Sequence[Gpu], wanted: Collection[str] | None, pids: Collection[int]
) -> list[Gpu]:
    """The GPUs that the run computes on.

    They are those where a process of `pids` was seen; else those `wanted` by number or UUID; where
    nobody said what is wanted, all of them.
    """
    used = [gpu for gpu in gpus if not gpu.pids.isdisjoint(pids)]
    if used or wanted is None:
        return used or list(gpus)
    return [gpu for gpu in gpus if any(_matches_gpu(gpu, name) for name in wanted)]


def _matches_gpu(gpu: Gpu, name: str) -> bool:
    # CUDA takes any beginning of a UUID that is not ambiguous.
    return name == str(gpu.index) or (name.startswith("GPU-") and gpu.uuid.startswith(name))


_REDUCERS: Mapping[CombineRule, Callable[[Sequence[float]], float]] = {
    CombineRule.SUM: fsum,
    CombineRule.MAX: max,
    CombineRule.MIN: min,
}
