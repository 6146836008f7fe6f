"""Plug-in module for verl, whose processes are started by Ray and cannot be decorated.

VERL_USE_EXTERNAL_MODULES=sentinel.integrations.callbacks.verl python -m verl.trainer.main_ppo ...

verl loads this module in every process of a training, through the variable above or through an
entry point; in the latter case it does nothing unless SENTINEL_RUN_ID names the run. The driver
process is monitored from the creation of its trackers. The worker ranks are monitored from their
first backward pass, as a separate run `<run>-ranks`, since the driver counts rollouts and they
count optimizer steps.
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
    """Whether the environment asks to monitor this process."""
    if os.environ.get(_OFF_VARIABLE, "0") not in {"", "0"}:
        return False
    external_modules = os.environ.get("VERL_USE_EXTERNAL_MODULES", "").split(",")
    return bool(os.environ.get(RUN_ID_VARIABLE)) or __name__ in external_modules


def start_on_training(arguments: MonitorArguments | None = None) -> None:
    """Start the session once this process creates trackers, or runs a backward pass."""
    if _is_worker_rank():
        AutoStart()
    else:
        ImportHook("verl.utils.tracking", functools.partial(_patch_tracking, arguments))


def _is_worker_rank() -> bool:
    """Whether verl started this process as a worker rank; if so, sets the name of its run."""
    if "WG_PREFIX" not in os.environ or "RANK" not in os.environ:
        return False
    run = os.environ.get(RUN_ID_VARIABLE)
    if run and not run.endswith(_RANKS_SUFFIX):
        os.environ[RUN_ID_VARIABLE] = run + _RANKS_SUFFIX
    return True


def _patch_tracking(arguments: MonitorArguments | None) -> None:
    tracking: Any = sys.modules["verl.utils.tracking"].Tracking
    original: Any = vars(tracking)["__init__"]
    is_first_call = True

    @functools.wraps(original)
    def start_session(self: Any, *args: Any, **kwargs: Any) -> Any:
        nonlocal is_first_call
        if not is_first_call:
            return original(self, *args, **kwargs)
        is_first_call = False
        if vars(tracking)["__init__"] is start_session:
            tracking.__init__ = original
        if current_session() is not None:
            return original(self, *args, **kwargs)
        begin_auto_session(arguments)
        # The session has patched `__init__` by now, and its patch must see this call.
        return vars(tracking)["__init__"](self, *args, **kwargs)

    tracking.__init__ = start_session


if is_monitoring_requested():
    start_on_training()
