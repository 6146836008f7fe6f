"""verl, whose processes nobody can decorate: Ray starts them.

VERL_USE_EXTERNAL_MODULES=sentinel.integrations.callbacks.verl python -m verl.trainer.main_ppo ...

verl loads this module in every process of a training: because the variable above says so, or by an
entry point, as a plug-in; then it does nothing unless SENTINEL_RUN_ID names the run. The process
that drives the training is watched from the moment it makes its trackers; each rank that computes,
from its first backward pass, as a run of its own beside it, `<run>-ranks`: what one counts are
rollouts, the other optimizer steps.
"""

from __future__ import annotations

import functools
import os
import sys
from typing import Any

from sentinel.client.arguments import Arguments
from sentinel.client.auto_session import begin
from sentinel.client.auto_start import FirstSign
from sentinel.client.import_hook import Arrival
from sentinel.client.session import current

RUN = "SENTINEL_RUN_ID"
_OFF = "SENTINEL_OFF"
_RANKS = "-ranks"


def asked() -> bool:
    """Whether somebody wants this process watched."""
    if os.environ.get(_OFF, "0") not in {"", "0"}:
        return False
    named = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    return bool(os.environ.get(RUN)) or __name__ in named


def watch(arguments: Arguments | None = None) -> None:
    """Wait for the first sign that this process drives a training, or computes one."""
    if _computes():
        FirstSign()
    else:
        Arrival("verl.utils.tracking", functools.partial(_arm, arguments))


def _computes() -> bool:
    """Whether verl started this as a rank of its workers; then the rank's run is named for it."""
    if "WG_PREFIX" not in os.environ or "RANK" not in os.environ:
        return False
    run = os.environ.get(RUN)
    if run and not run.endswith(_RANKS):
        os.environ[RUN] = run + _RANKS
    return True


def _arm(arguments: Arguments | None) -> None:
    tracking: Any = sys.modules["verl.utils.tracking"].Tracking
    original: Any = vars(tracking)["__init__"]

    armed = [True]

    @functools.wraps(original)
    def first(self: Any, *args: Any, **kwargs: Any) -> Any:
        if not armed:
            return original(self, *args, **kwargs)
        armed.clear()
        if vars(tracking)["__init__"] is first:
            tracking.__init__ = original
        if current() is not None:
            return original(self, *args, **kwargs)
        begin(arguments)
        # The session's own taps stand there now: they are to see this very call.
        return vars(tracking)["__init__"](self, *args, **kwargs)

    tracking.__init__ = first


if asked():
    watch()
