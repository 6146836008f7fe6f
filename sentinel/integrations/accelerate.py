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

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.phases import PhaseRecorder
from sentinel.client.capture.tracker import TrackerCapture, ignore_trackers_during
from sentinel.model.record import Event

FRAMEWORK = "accelerate.accelerator"


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    owner = sys.modules[FRAMEWORK].Accelerator
    words = AcceleratorObserver(patcher)
    patcher.wrap(owner, "__init__", after=words.on_init)
    patcher.wrap(owner, "backward", before=words.on_backward)
    ignore_trackers_during(patcher, owner, "log")
    patcher.wrap(owner, "log", before=words.on_log)
    patcher.replace(owner, "save_state", PhaseRecorder(patcher).wrapper_for("save"))
    patcher.wrap(owner, "save_state", after=words.on_save)


class AcceleratorObserver:
    """What an accelerator says."""

    def __init__(self, patcher: Patcher) -> None:
        self._patcher, self._tracker = patcher, TrackerCapture(patcher)
        self._is_reported = False

    def on_init(self, _: None, accelerator: Any, *__: Any, **___: Any) -> None:
        """An accelerator was built."""
        steps = accelerator.gradient_accumulation_steps
        self._report_config(
            accelerator, {"framework": "accelerate", "gradient_accumulation_steps": steps}
        )

    def on_backward(self, accelerator: Any, *_: Any, **__: Any) -> None:
        """A backward pass: of one that was built before the run began, if it is the first."""
        if not self._is_reported:
            # A Trainer's, which accumulates by itself, says 1.
            steps = accelerator.gradient_accumulation_steps
            self._report_config(
                accelerator, {"gradient_accumulation_steps": steps} if steps > 1 else {}
            )

    def on_log(self, accelerator: Any, values: Any, step: Any = None, *_: Any, **__: Any) -> None:
        """Values for its trackers, of which only the main process tells."""
        if accelerator.is_main_process:
            self._tracker.log(values, step)

    def on_save(self, path: Any, *_: Any, **__: Any) -> None:
        """A checkpoint was written."""
        facts = {"path": str(Path(path).absolute())} if isinstance(path, str | PathLike) else {}
        self._patcher.recorder.record_event(Event.SAVE, None, facts)

    def _report_config(self, accelerator: Any, facts: dict[str, Any]) -> None:
        self._is_reported = True
        if not accelerator.is_local_main_process:
            return
        accelerate = sys.modules["accelerate"]
        told = {
            "accelerate": str(accelerate.__version__),
            "mixed_precision": str(accelerator.mixed_precision),
            "distributed_type": str(getattr(accelerator.distributed_type, "value", "")),
        }
        self._patcher.recorder.record_event(Event.METADATA, None, {**told, **facts})
