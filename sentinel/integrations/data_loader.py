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

from sentinel.client.capture.patcher import Tap

FRAMEWORK = "torch.utils.data.dataloader"


def attach(tap: Tap) -> None:
    """Put the tap in."""
    owner = getattr(sys.modules[FRAMEWORK], "_BaseDataLoaderIter", None)
    if owner is None:
        tap.lacks("_BaseDataLoaderIter")
        return
    loop = tap.loop

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def waited(self: Any) -> Any:
            began = perf_counter()
            try:
                return original(self)
            finally:
                if loop.trains_in in {None, get_ident()}:
                    loop.spent("data_wait", perf_counter() - began)

        return waited

    tap.replace(owner, "__next__", make)
