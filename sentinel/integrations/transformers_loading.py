"""Transformers: the weights that `from_pretrained` initialized, since no checkpoint has them.

Patches the function that reports them, which exists since version 5.
"""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.patcher import Patcher

FRAMEWORK = "transformers.modeling_utils"


def attach(patcher: Patcher) -> None:
    """Install the patch."""

    def on_report(model: Any, loading_info: Any, **_: Any) -> None:
        if patcher.loop.checks is not None:
            patcher.loop.checks.process.loads.add_pretrained(
                model, loading_info.missing_and_mismatched()
            )

    patcher.wrap(sys.modules[FRAMEWORK], "log_state_dict_report", before=on_report)
