"""Reports: the callbacks by which transformers tells trackers what it logs, as `report_to` asks.

We have that from the trainer itself; what these tell a tracker is not to be heard a second time.
Whatever a callback of the user's own tells one is.
"""

from __future__ import annotations

import sys

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.tracker import ignore_trackers_during

FRAMEWORK = "transformers.integrations.integration_utils"


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    module = sys.modules[FRAMEWORK]
    callback = sys.modules["transformers.trainer_callback"].TrainerCallback
    for kind in list(vars(module).values()):
        # Not what is imported there, such as the handler through which all callbacks are called.
        if isinstance(kind, type) and issubclass(kind, callback) and kind.__module__ == FRAMEWORK:
            for name in [name for name in vars(kind) if name.startswith("on_")]:
                ignore_trackers_during(patcher, kind, name)
