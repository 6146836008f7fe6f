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

from sentinel.live.node.host import Host, free
from sentinel.live.node.nvml import Nvml
from sentinel.live.node.poller import Watch
from sentinel.model.counters import Tally
from sentinel.model.hardware import Gpu, Machine, serving

AGED = 6
"""Looks missed in a row after which what a part last said is no longer the present."""

YOUNG_SECONDS = 30.0
"""What is younger than this is the present, however often it is looked for."""

OUTPUT = ("output_dir", "default_local_dir", "default_root_dir")
"""What frameworks call the folder that checkpoints go to."""


def output_dir(about: Mapping[str, object]) -> Path | None:
    """Where a run that says this of itself writes its checkpoints, if that is an absolute path."""
    for name in OUTPUT:
        told = about.get(name)
        if isinstance(told, str) and told.startswith("/") and "\0" not in told:
            return Path(told)
    return None


@dataclass
class MachineWatch:
    """Looks at this node every `seconds`; 0 for never.

    `state` is the folder of the run, `output` gives that of its checkpoints once it is known, and
    `pids` the ranks' processes by rank. `clock` gives seconds since the epoch.
    """

    seconds: float
    tally: Tally
    state: Path
    output: Callable[[], Path | None] = lambda: None
    pids: Callable[[], Mapping[int, int]] = dict
    clock: Callable[[], float] = time.time
    nvml: Nvml = field(default_factory=Nvml)
    host: Host = field(default_factory=Host)
    _told: Mapping[str, float] = field(default_factory=dict)
    _told_at: float = 0.0

    def __post_init__(self) -> None:
        looks: dict[str, Callable[[], Any]] = {
            "gpu": self._gpus,
            "host": self.host.look,
            "state": lambda: free(self.state),
            "output": self._output,
        }
        self.watches = {
            part: Watch(part, look, self.seconds, self.tally, self.clock)
            for part, look in looks.items()
        }

    def start(self) -> None:
        """Begin to look, unless it was asked not to."""
        for watch in self.watches.values() if self.seconds > 0 else ():
            watch.start()

    def stop(self) -> None:
        """Look no more."""
        for watch in self.watches.values():
            watch.stop()

    def now(self) -> Machine:
        """What is known of the present; a part that has not answered for long is left out."""
        oldest = self.clock() - max(YOUNG_SECONDS, AGED * self.seconds)
        found = {part: watch.newest for part, watch in self.watches.items()}
        known = {part: seen for part, seen in found.items() if seen is not None}
        fresh = {part: told for part, (at, told) in known.items() if at >= oldest}
        gpus, ranks = fresh.get("gpu", ((), {}))
        disks = {part: fresh[part] for part in ("state", "output") if fresh.get(part) is not None}
        seen = {part: at for part, (at, _) in known.items()}
        return Machine(fresh.get("host", {}), disks, gpus, ranks, seen)

    def news(self) -> dict[str, float]:
        """What a record is to tell of the machine: every `seconds`, if anything was seen since."""
        time, machine = self.clock(), self.now()
        if machine.seen == self._told or 0.0 <= time - self._told_at < self.seconds:
            return {}
        self._told_at, self._told = time, machine.seen
        return machine.values()

    def _gpus(self) -> tuple[list[Gpu], dict[int, list[int]]]:
        """The GPUs that the run computes on, and by their number the ranks that do."""
        pids = dict(self.pids())
        ranks = {pid: rank for rank, pid in pids.items()}
        gpus = serving(self.nvml.look(), _wanted(pids.values()), ranks)
        return gpus, {
            gpu.index: sorted(ranks[pid] for pid in gpu.pids & ranks.keys()) for gpu in gpus
        }

    def _output(self) -> float | None:
        directory = self.output()
        return None if directory is None else free(directory)


def _wanted(pids: Iterable[int]) -> set[str] | None:
    """The GPUs that these processes were given; None if any of them was not told."""
    given = [_visible(pid) for pid in pids]
    told = [names for names in given if names is not None]
    wanted = {name for names in told for name in names}
    # A slice of a GPU does not say of which.
    sliced = any(name.startswith("MIG-") for name in wanted)
    return wanted if told and len(told) == len(given) and not sliced else None


def _visible(pid: int) -> list[str] | None:
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
