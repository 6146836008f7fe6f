"""Memory runs out: something keeps more with every step, and the run will be killed for it.

Clues
    Memory that fills steadily towards its end is enough by itself; a run that slows meanwhile, as
    the machine swaps or the allocator searches, makes it urgent.

Source
    The frequently asked questions of PyTorch on memory ("don't accumulate history across your
    training loop"); pytorch/pytorch issue 13246, on loaders whose workers copy the data set.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from sentinel.model.diagnosis import Clue, Scene, seen
from sentinel.model.finding import Severity
from sentinel.signals.setting_names import lever


class MemoryRunsOut:
    """Judges by the forecast."""

    title: ClassVar[str] = "memory runs out"
    explains: ClassVar[frozenset[str]] = frozenset({"memory_creep", "throughput_drop"})
    severity: ClassVar[Severity | None] = None

    def clues(self, scene: Scene) -> Iterable[Clue]:
        """The forecast, and what it slows."""
        creep = scene.signs.get("memory_creep")
        if creep is None:
            return
        yield from seen(creep, 0.75)
        slow = scene.signs.get("throughput_drop")
        if slow is not None and slow.onset_step >= creep.onset_step:
            yield from seen(slow, 0.2)

    def remedy(self, scene: Scene) -> str:
        """A checkpoint before the end, and where leaks are."""
        creep = scene.signs.get("memory_creep")
        left = None if creep is None else creep.evidence.get("seconds_left")
        soon = f" within {left / 60:.0f} minutes" if isinstance(left, float | int) else ""
        return (
            f"Save a checkpoint{soon} and resume from it, which frees the memory "
            f"({lever('save interval', scene.facts)} short enough that one comes in time). Then "
            "look for losses or logits kept with their graph (keep `loss.detach()`), lists that "
            f"grow with every step, and with many of {lever('data workers', scene.facts)}, data "
            "that each of them copies."
        )
