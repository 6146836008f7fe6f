"""Data loader: how long a step waited for its batches.

Tap: `__next__` of the iterators behind every `torch.utils.data.DataLoader`, with workers and
without. Only the thread that trains is listened to: what others fetch ahead keeps nobody waiting.
An evaluation between two steps counts as theirs, as it does in the time of the step.
"""

from __future__ import annotations

import functools
import sys
from threading import get_ident
from time import perf_counter
from typing import Any

from sentinel.client.capture.patcher import Patcher

FRAMEWORK = "torch.utils.data.dataloader"


def attach(patcher: Patcher) -> None:
    """Put the tap in."""
    owner = getattr(sys.modules[FRAMEWORK], "_BaseDataLoaderIter", None)
    if owner is None:
        patcher.add_missing("_BaseDataLoaderIter")
        return
    loop = patcher.loop

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def waited(self: Any) -> Any:
            began = perf_counter()
            try:
                return original(self)
            finally:
                if loop.training_thread_id in {None, get_ident()}:
                    loop.add_seconds("data_wait", perf_counter() - began)

        return waited

    patcher.replace(owner, "__next__", make)
