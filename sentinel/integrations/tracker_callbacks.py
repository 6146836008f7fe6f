"""Tracker callbacks of transformers, which `report_to` enables.

The integration of the trainer captures what it logs, so values that these callbacks pass to a
tracker are ignored. Values that a user's own callback passes to a tracker are captured.
"""

from __future__ import annotations

import sys

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.tracker import ignore_trackers_during

FRAMEWORK = "transformers.integrations.integration_utils"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    module = sys.modules[FRAMEWORK]
    callback = sys.modules["transformers.trainer_callback"].TrainerCallback
    for kind in list(vars(module).values()):
        # Excludes imported classes, such as the handler that calls all callbacks.
        if isinstance(kind, type) and issubclass(kind, callback) and kind.__module__ == FRAMEWORK:
            for name in [name for name in vars(kind) if name.startswith("on_")]:
                ignore_trackers_during(patcher, kind, name)
