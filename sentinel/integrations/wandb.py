"""W&B: whatever is logged to a run, by `run.log` or `wandb.log`.

Tap: the inner `Run._log`, since `wandb.log` is a method bound when the run began, which no change
of the class reaches any more. Dicts within dicts are named as W&B names them, "a.b". A step that
W&B counts by itself is nobody's number.
"""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.tracker import TrackerCapture

FRAMEWORK = "wandb.sdk.wandb_run"


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    tracker = TrackerCapture(patcher, separator=".")

    def logged(_: Any, data: Any, step: Any = None, commit: Any = None) -> None:  # noqa: ARG001
        tracker.log(data, step)

    patcher.wrap(sys.modules[FRAMEWORK].Run, "_log", before=logged)
