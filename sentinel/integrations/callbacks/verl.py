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

from sentinel.client.arguments import MonitorArguments
from sentinel.client.auto_session import begin_auto_session
from sentinel.client.auto_start import AutoStart
from sentinel.client.import_hook import ImportHook
from sentinel.client.session import current_session

RUN_ID_VARIABLE = "SENTINEL_RUN_ID"
_OFF_VARIABLE = "SENTINEL_OFF"
_RANKS_SUFFIX = "-ranks"


def is_monitoring_requested() -> bool:
    """Whether somebody wants this process watched."""
    if os.environ.get(_OFF_VARIABLE, "0") not in {"", "0"}:
        return False
    named = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    return bool(os.environ.get(RUN_ID_VARIABLE)) or __name__ in named


def start_on_training(arguments: MonitorArguments | None = None) -> None:
    """Wait for the first sign that this process drives a training, or computes one."""
    if _is_worker_rank():
        AutoStart()
    else:
        ImportHook("verl.utils.tracking", functools.partial(_patch_tracking, arguments))


def _is_worker_rank() -> bool:
    """Whether verl started this as a rank of its workers; then the rank's run is named for it."""
    if "WG_PREFIX" not in os.environ or "RANK" not in os.environ:
        return False
    run = os.environ.get(RUN_ID_VARIABLE)
    if run and not run.endswith(_RANKS_SUFFIX):
        os.environ[RUN_ID_VARIABLE] = run + _RANKS_SUFFIX
    return True


def _patch_tracking(arguments: MonitorArguments | None) -> None:
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
        if current_session() is not None:
            return original(self, *args, **kwargs)
        begin_auto_session(arguments)
        # The session's own taps stand there now: they are to see this very call.
        return vars(tracking)["__init__"](self, *args, **kwargs)

    tracking.__init__ = first


if is_monitoring_requested():
    start_on_training()
