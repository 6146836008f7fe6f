"""verl: what its trainer tells its trackers, in the one process that drives the others.

Taps: `Tracking.log`, for the numbers of a step under verl's own number and by its own names; and
`Tracking.__init__`, which is given the configuration. That it saved verl tells by the time it took.
Ranks that compute are other processes: see `sentinel.integrations.callbacks.verl`.
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
    """Put the taps in."""
    tracking = sys.modules[FRAMEWORK].Tracking
    words = VerlObserver(patcher)
    patcher.wrap(tracking, "__init__", before=words.on_init)
    ignore_trackers_during(patcher, tracking, "log")
    patcher.wrap(tracking, "log", before=words.on_log)


class VerlObserver:
    """What verl says."""

    def __init__(self, patcher: Patcher) -> None:
        self._patcher = patcher
        self._output_dir = ""

    def on_init(
        self,
        _: Any,
        project_name: Any,
        experiment_name: Any,
        default_backend: Any = None,  # noqa: ARG002 - verl names them
        config: Any = None,
    ) -> None:
        """A training begins: say what it is."""
        facts = verl_metadata(project_name, experiment_name, config)
        self._output_dir = str(facts.get("output_dir", ""))
        self._patcher.recorder.record_event(Event.METADATA, None, facts)

    def on_log(self, _: Any, data: Any, step: Any, backend: Any = None) -> None:  # noqa: ARG002
        """The numbers of one step, or of an evaluation before or after all steps."""
        if not isinstance(data, Mapping):
            return
        found, recorder = read_numbers(data), self._patcher.recorder
        if found and all(name.startswith(_HELD_OUT_PREFIXES) for name in found):
            recorder.record_event(Event.EVAL, step, found)
            return
        recorder.log_from_framework(found, step)
        if SAVE_TIME_KEY in found:
            place = (
                {"path": str(Path(self._output_dir) / f"global_step_{step}")}
                if self._output_dir
                else {}
            )
            recorder.record_event(Event.SAVE, step, place)
