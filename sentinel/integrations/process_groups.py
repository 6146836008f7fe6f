"""torch.distributed: lets gloo's threads end their work before a process group is destroyed.

The thread of a gloo group may still drop the last collective of a backward pass, for which it needs
the interpreter lock. PyTorch joins that thread while it holds the lock, and then waits for ever:
`ProcessGroupGloo.~ProcessGroupGloo` and `AsyncWork.~AsyncWork`, PyTorch 2.13. What sentinel does
after a backward pass makes that more likely, so it lets the thread have the lock first.
"""

from __future__ import annotations

import functools
import sys
import time
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.client.process_group import process_group

FRAMEWORK = "torch.distributed.distributed_c10d"


def attach(patcher: Patcher) -> None:
    """Install the patches."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def destroy_process_group(*args: Any, **kwargs: Any) -> Any:
            patcher.call_safely(let_threads_run)
            return original(*args, **kwargs)

        return destroy_process_group

    # The second module has the same function under the same name.
    for owner in (sys.modules[FRAMEWORK], sys.modules["torch.distributed"]):
        patcher.replace(owner, "destroy_process_group", make)


def let_threads_run() -> None:
    """Wait for twice the time after which a thread that wants the interpreter lock gets it."""
    group = process_group()
    if group is not None and "gloo" in str(group.get_backend_config()):
        time.sleep(2.0 * sys.getswitchinterval())
