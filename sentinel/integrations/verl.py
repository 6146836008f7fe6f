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

from sentinel.client.capture.patcher import Tap
from sentinel.client.capture.tracker import numbers, repeats
from sentinel.client.capture.verl_config import run_facts
from sentinel.model.record import Event

FRAMEWORK = "verl.utils.tracking"

SAVED = "timing_s/save_checkpoint"
_HELD_OUT = ("val/", "val-core/", "val-aux/")


def attach(tap: Tap) -> None:
    """Put the taps in."""
    tracking = sys.modules[FRAMEWORK].Tracking
    words = Words(tap)
    tap.watch(tracking, "__init__", before=words.made)
    repeats(tap, tracking, "log")
    tap.watch(tracking, "log", before=words.logged)


class Words:
    """What verl says."""

    def __init__(self, tap: Tap) -> None:
        self._tap = tap
        self._folder = ""

    def made(
        self,
        _: Any,
        project_name: Any,
        experiment_name: Any,
        default_backend: Any = None,  # noqa: ARG002 - verl names them
        config: Any = None,
    ) -> None:
        """A training begins: say what it is."""
        facts = run_facts(project_name, experiment_name, config)
        self._folder = str(facts.get("output_dir", ""))
        self._tap.recorder.say(Event.FACTS, None, facts)

    def logged(self, _: Any, data: Any, step: Any, backend: Any = None) -> None:  # noqa: ARG002
        """The numbers of one step, or of an evaluation before or after all steps."""
        if not isinstance(data, Mapping):
            return
        found, recorder = numbers(data), self._tap.recorder
        if found and all(name.startswith(_HELD_OUT) for name in found):
            recorder.say(Event.EVAL, step, found)
            return
        recorder.hear(found, step)
        if SAVED in found:
            place = (
                {"path": str(Path(self._folder) / f"global_step_{step}")} if self._folder else {}
            )
            recorder.say(Event.SAVE, step, place)
