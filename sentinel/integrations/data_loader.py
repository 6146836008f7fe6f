"""Data loader: how long a step waits for its batches.

Patches `__next__` of the iterators behind every `torch.utils.data.DataLoader`, with and without
workers. Only the training thread counts: batches that other threads prefetch delay no step. The
waits of an evaluation between two steps count for the step, as they do in the step time. Each
batch is a sign of life. `_next_index` is patched for the indices that a sampler draws, which are
noted with the batch that they belong to. The checks of the training see the batches of the steps
that they observe, and the first one of each pass over the data.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Callable
from threading import get_ident
from time import perf_counter
from typing import Any

from sentinel.client.capture.drawn_rows import DrawnRows
from sentinel.client.capture.patcher import Patcher

FRAMEWORK = "torch.utils.data.dataloader"


def attach(patcher: Patcher) -> None:
    """Install the patch."""
    owner = getattr(sys.modules[FRAMEWORK], "_BaseDataLoaderIter", None)
    if owner is None:
        patcher.add_missing("_BaseDataLoaderIter")
        return
    loop, activity = patcher.loop, patcher.recorder.activity
    rows = loop.rows

    def check(iterator: Any, batch: Any) -> None:
        if loop.checks is not None:
            is_first = getattr(iterator, "_num_yielded", 0) == 1
            is_observed = loop.observing_checks is not None
            loop.checks.on_batch(iterator, batch, is_first=is_first, is_observed=is_observed)

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def timed_next(self: Any) -> Any:
            started = perf_counter()
            thread = loop.training_thread_id
            is_training_thread = thread is None or thread == get_ident()
            try:
                batch = original(self)
            finally:
                if is_training_thread:
                    loop.add_seconds("data_wait", perf_counter() - started)
                    activity.count()
            if loop.observing_checks or getattr(self, "_num_yielded", 0) == 1:
                patcher.call_safely(check, self, batch)
            if rows is not None:
                rows.on_batch(self, is_training_thread)
            return batch

        return timed_next

    patcher.replace(owner, "__next__", make)
    if rows is not None:
        patcher.replace(owner, "_next_index", _wrap_draw(rows))


def _wrap_draw(rows: DrawnRows) -> Callable[[Any], Any]:
    """A wrapper for `_next_index(iterator)`."""

    def make(original: Any) -> Any:
        @functools.wraps(original)
        def next_index(self: Any) -> Any:
            index = original(self)
            rows.on_draw(self, index)
            return index

        return next_index

    return make
