"""Accelerate: training loops with an `Accelerator`.

Patches `Accelerator.log`, with or without a tracker, on the main process only; `save_state`; and
`__init__` and `backward`, to record the configuration once. `DataLoaderShard.__iter__`, whose
loader fetches a batch ahead of the loop, is patched for the rows of a step. The loss, summed over
the micro-batches of a step, is captured by the patches of `torch_loop`.
"""

from __future__ import annotations

import functools
import sys
from collections import deque
from collections.abc import Callable, Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from sentinel.client.capture.drawn_rows import Batch, DrawnRows
from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.phases import PhaseRecorder
from sentinel.client.capture.tracker import TrackerCapture, ignore_trackers_during
from sentinel.model.record import Event

FRAMEWORK = "accelerate.accelerator"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    owner = sys.modules[FRAMEWORK].Accelerator
    observer = AcceleratorObserver(patcher)
    patcher.wrap(owner, "__init__", after=observer.on_init)
    patcher.wrap(owner, "backward", before=observer.on_backward)
    ignore_trackers_during(patcher, owner, "log")
    patcher.wrap(owner, "log", before=observer.on_log)
    patcher.replace(owner, "save_state", PhaseRecorder(patcher).wrapper_for("save"))
    patcher.wrap(owner, "save_state", after=observer.on_save)
    loader = getattr(sys.modules.get("accelerate.data_loader"), "DataLoaderShard", None)
    if patcher.loop.rows is not None and loader is not None:
        patcher.replace(loader, "__iter__", _wrap_shard(patcher, patcher.loop.rows))


def _wrap_shard(patcher: Patcher, rows: DrawnRows) -> Callable[[Any], Any]:
    """A wrapper for the generator function `__iter__(loader)`."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def iterate(self: Any) -> Iterator[Any]:
            fetched: deque[Batch] = deque()
            batches, skipped = original(self), getattr(self, "skip_batches", 0)
            while True:
                with rows.fetching_ahead(fetched):
                    try:
                        batch = next(batches)
                    except StopIteration:
                        return
                for _ in range(min(skipped, len(fetched))):
                    fetched.popleft()
                skipped = 0
                if fetched:
                    patcher.call_safely(rows.add, fetched.popleft())
                yield batch

        return iterate

    return make


class AcceleratorObserver:
    """Records the configuration, logs and checkpoints of accelerators."""

    def __init__(self, patcher: Patcher) -> None:
        self._patcher, self._tracker = patcher, TrackerCapture(patcher)
        self._is_reported = False

    def on_init(self, _: None, accelerator: Any, *__: Any, **___: Any) -> None:
        """Called when an accelerator was created."""
        steps = accelerator.gradient_accumulation_steps
        self._report_config(
            accelerator, {"framework": "accelerate", "gradient_accumulation_steps": steps}
        )

    def on_backward(self, accelerator: Any, *_: Any, **__: Any) -> None:
        """Called for a backward pass; reports an accelerator that is older than the run."""
        checks = self._patcher.loop.observing_checks
        if checks is not None:
            checks.on_framework_backward("Accelerate", str(accelerator.mixed_precision))
        if not self._is_reported:
            # A Trainer accumulates gradients itself and gives its accelerator 1.
            steps = accelerator.gradient_accumulation_steps
            self._report_config(
                accelerator, {"gradient_accumulation_steps": steps} if steps > 1 else {}
            )

    def on_log(self, accelerator: Any, values: Any, step: Any = None, *_: Any, **__: Any) -> None:
        """Called for logged values; trackers get those of the main process only."""
        if accelerator.is_main_process:
            self._tracker.log(values, step)

    def on_save(self, path: Any, *_: Any, **__: Any) -> None:
        """Called when a checkpoint was written."""
        location = {"path": str(Path(path).absolute())} if isinstance(path, str | PathLike) else {}
        self._patcher.recorder.record_event(Event.SAVE, None, location)

    def _report_config(self, accelerator: Any, settings: dict[str, Any]) -> None:
        self._is_reported = True
        if not accelerator.is_local_main_process:
            return
        accelerate = sys.modules["accelerate"]
        config = {
            "accelerate": str(accelerate.__version__),
            "mixed_precision": str(accelerator.mixed_precision),
            "distributed_type": str(getattr(accelerator.distributed_type, "value", "")),
        }
        self._patcher.recorder.record_event(Event.METADATA, None, {**config, **settings})
