"""Trackio: whatever is logged to a run, by `run.log` or `trackio.log`."""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.tracker import TrackerCapture

FRAMEWORK = "trackio.run"


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    tracker = TrackerCapture(patcher)

    def logged(_: Any, metrics: Any, step: Any = None) -> None:
        tracker.log(metrics, step)

    patcher.wrap(sys.modules[FRAMEWORK].Run, "log", before=logged)
