"""verl: what its trainer logs to trackers, in the driver process.

Patches `Tracking.log`, for the values of a step under verl's step number and keys, and
`Tracking.__init__`, which gets the configuration. A checkpoint is recognized by its logged time.
Worker ranks are other processes: see `sentinel.integrations.callbacks.verl`.
"""

from __future__ import annotations

import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from sentinel.client.capture.framework_metadata import verl_metadata
from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.tracker import ignore_trackers_during, read_numbers
from sentinel.model.record import Event

FRAMEWORK = "verl.utils.tracking"

SAVE_TIME_KEY = "timing_s/save_checkpoint"
_HELD_OUT_PREFIXES = ("val/", "val-core/", "val-aux/")


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    tracking = sys.modules[FRAMEWORK].Tracking
    observer = VerlObserver(patcher)
    patcher.wrap(tracking, "__init__", before=observer.on_init)
    ignore_trackers_during(patcher, tracking, "log")
    patcher.wrap(tracking, "log", before=observer.on_log)


class VerlObserver:
    """Records the configuration, values and checkpoints that verl logs."""

    def __init__(self, patcher: Patcher) -> None:
        self._patcher = patcher
        self._output_dir = ""

    def on_init(
        self,
        _: Any,
        project_name: Any,
        experiment_name: Any,
        default_backend: Any = None,  # noqa: ARG002 - verl passes it by name
        config: Any = None,
    ) -> None:
        """Called when a training starts; records its configuration."""
        metadata = verl_metadata(project_name, experiment_name, config)
        self._output_dir = str(metadata.get("output_dir", ""))
        self._patcher.recorder.record_event(Event.METADATA, None, metadata)

    def on_log(self, _: Any, data: Any, step: Any, backend: Any = None) -> None:  # noqa: ARG002
        """Called with the values of a step, or of an evaluation before or after all steps."""
        if not isinstance(data, Mapping):
            return
        values, recorder = read_numbers(data), self._patcher.recorder
        if values and all(name.startswith(_HELD_OUT_PREFIXES) for name in values):
            recorder.record_event(Event.EVAL, step, values)
            return
        recorder.log_from_framework(values, step)
        if SAVE_TIME_KEY in values:
            location = (
                {"path": str(Path(self._output_dir) / f"global_step_{step}")}
                if self._output_dir
                else {}
            )
            recorder.record_event(Event.SAVE, step, location)
