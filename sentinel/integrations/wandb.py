"""W&B: metrics logged by `run.log` or `wandb.log`.

Patches the inner `Run._log`, since `wandb.log` is a method that was bound when the run started and
bypasses a patch of the class. Keys of nested dicts are joined as W&B does, "a.b". W&B's own step
counter is not used as a step.
"""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.tracker import TrackerCapture
from sentinel.client.capture.tracker_run import TrackerRunReporter, without_password

FRAMEWORK = "wandb.sdk.wandb_run"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    tracker = TrackerCapture(patcher, separator=".")
    runs = TrackerRunReporter(patcher)

    def on_log(run: Any, data: Any, step: Any = None, commit: Any = None) -> None:  # noqa: ARG001
        tracker.log(data, step)
        runs.report(id(run), lambda: _describe(run))

    patcher.wrap(sys.modules[FRAMEWORK].Run, "_log", before=on_log)


def _describe(run: Any) -> dict[str, str | None]:
    return {
        "wandb_run": "/".join(filter(None, (run.entity, run.project, run.id))),
        "wandb_url": without_password(run.settings.base_url),
        "wandb_offline": "yes" if run.offline else "",
    }
