"""Accelerate: loops written around an `Accelerator`.

Taps: `Accelerator.log`, with or without a tracker, and only where it tells, on the main process;
`save_state`; and `__init__` and `backward`, to say once what it was set to. The loss, summed over
the micro-batches of a step, is found by the taps of plain PyTorch.
"""

from __future__ import annotations

import sys
from os import PathLike
from pathlib import Path
from typing import Any

from sentinel.client.capture.patcher import Tap
from sentinel.client.capture.phases import Phases
from sentinel.client.capture.tracker import Tracker, repeats
from sentinel.model.record import Event

FRAMEWORK = "accelerate.accelerator"


def attach(tap: Tap) -> None:
    """Put the taps in."""
    owner = sys.modules[FRAMEWORK].Accelerator
    words = Words(tap)
    tap.watch(owner, "__init__", after=words.made)
    tap.watch(owner, "backward", before=words.met)
    repeats(tap, owner, "log")
    tap.watch(owner, "log", before=words.logged)
    tap.replace(owner, "save_state", Phases(tap).around("save"))
    tap.watch(owner, "save_state", after=words.saved)


class Words:
    """What an accelerator says."""

    def __init__(self, tap: Tap) -> None:
        self._tap, self._tracker = tap, Tracker(tap)
        self._known = False

    def made(self, _: None, accelerator: Any, *__: Any, **___: Any) -> None:
        """An accelerator was built."""
        steps = accelerator.gradient_accumulation_steps
        self._tell(accelerator, {"framework": "accelerate", "gradient_accumulation_steps": steps})

    def met(self, accelerator: Any, *_: Any, **__: Any) -> None:
        """A backward pass: of one that was built before the run began, if it is the first."""
        if not self._known:
            # A Trainer's, which accumulates by itself, says 1.
            steps = accelerator.gradient_accumulation_steps
            self._tell(accelerator, {"gradient_accumulation_steps": steps} if steps > 1 else {})

    def logged(self, accelerator: Any, values: Any, step: Any = None, *_: Any, **__: Any) -> None:
        """Values for its trackers, of which only the main process tells."""
        if accelerator.is_main_process:
            self._tracker.hear(values, step)

    def saved(self, path: Any, *_: Any, **__: Any) -> None:
        """A checkpoint was written."""
        facts = {"path": str(Path(path).absolute())} if isinstance(path, str | PathLike) else {}
        self._tap.recorder.say(Event.SAVE, None, facts)

    def _tell(self, accelerator: Any, facts: dict[str, Any]) -> None:
        self._known = True
        if not accelerator.is_local_main_process:
            return
        accelerate = sys.modules["accelerate"]
        told = {
            "accelerate": str(accelerate.__version__),
            "mixed_precision": str(accelerator.mixed_precision),
            "distributed_type": str(getattr(accelerator.distributed_type, "value", "")),
        }
        self._tap.recorder.say(Event.FACTS, None, {**told, **facts})
