"""Trackio: whatever is logged to a run, by `run.log` or `trackio.log`."""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.patcher import Tap
from sentinel.client.capture.tracker import Tracker

FRAMEWORK = "trackio.run"


def attach(tap: Tap) -> None:
    """Put the taps in."""
    tracker = Tracker(tap)

    def logged(_: Any, metrics: Any, step: Any = None) -> None:
        tracker.hear(metrics, step)

    tap.watch(sys.modules[FRAMEWORK].Run, "log", before=logged)
