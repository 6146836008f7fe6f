"""Trackio: metrics logged by `run.log` or `trackio.log`."""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.tracker import TrackerCapture
from sentinel.client.capture.tracker_run import TrackerRunReporter, without_password

FRAMEWORK = "trackio.run"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    tracker = TrackerCapture(patcher)
    runs = TrackerRunReporter(patcher)

    def on_log(run: Any, metrics: Any, step: Any = None) -> None:
        tracker.log(metrics, step)
        runs.report(id(run), lambda: _describe(run))

    patcher.wrap(sys.modules[FRAMEWORK].Run, "log", before=on_log)


def _describe(run: Any) -> dict[str, str | None]:
    # Private attributes: without them, the run is in files of this machine.
    server = getattr(run, "_space_id", None) or getattr(run, "_server_base_url", None) or ""
    return {
        "trackio_project": run.project,
        "trackio_run": run.name,
        "trackio_run_id": getattr(run, "id", None),
        "trackio_server": without_password(server),
    }
