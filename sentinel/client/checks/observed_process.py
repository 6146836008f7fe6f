"""What the trainings of one process have in common, for the checks."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from sentinel.client.capture.device_copy import DeviceCopies
from sentinel.client.capture.owned_modules import SeenModules
from sentinel.client.checks.batches import DataPasses
from sentinel.client.checks.check import Evidence
from sentinel.client.checks.evaluation import compiled_frames
from sentinel.client.checks.loaded_weights import Loads
from sentinel.client.checks.untrained_parts import RecomputedBlocks


@dataclass(frozen=True)
class ObservedProcess:
    """What the trainings of a process have in common.

    `seen_modules` are modules of which one may own the parameters of a training. `record` writes a
    CHECK, `record_metadata` metadata of the run; `device_copies` reads results from their device.
    """

    seen_modules: SeenModules
    record: Callable[[Evidence], None]
    record_metadata: Callable[[Evidence], None]
    device_copies: DeviceCopies
    count_error: Callable[[Exception], None]
    rank: int = 0
    passes: DataPasses = field(default_factory=DataPasses)
    """The first one begins before the optimizer is known."""
    loads: Loads = field(default_factory=Loads)
    recomputed: RecomputedBlocks = field(default_factory=RecomputedBlocks)
    autocast_devices: set[str] = field(default_factory=set)
    """The types of devices for which the process uses autocast."""
    frames_before: int = field(default_factory=compiled_frames)
    """Graphs that torch.compile had made when the run began."""
