"""Trackio: metrics logged by `run.log` or `trackio.log`."""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.tracker import TrackerCapture

FRAMEWORK = "trackio.run"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    tracker = TrackerCapture(patcher)

    def on_log(_: Any, metrics: Any, step: Any = None) -> None:
        tracker.log(metrics, step)

    patcher.wrap(sys.modules[FRAMEWORK].Run, "log", before=on_log)
