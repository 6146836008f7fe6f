"""A device without one: host tensors that our code takes for a device's, and every read seen.

On a GPU a read of a value waits for all that was queued before it. Here `Ops` counts each operation
that PyTorch dispatches; a loop is run without us and with us, and what is there more often with us
is ours. Nothing of that may read a value, or copy in a way that waits.
"""

from __future__ import annotations

from collections import Counter
from contextlib import contextmanager

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from sentinel.client import recorder
from sentinel.client.capture import scalars
from sentinel.client.capture.device_copy import ROWS_PER_DEVICE, SCALARS_PER_ROW, DeviceQueue

READS = (
    "_local_scalar_dense",
    "is_nonzero",
    "item",
    "nonzero",
    "masked_select",
    "equal",
    "allclose",
    "_unique",
    "unique_",
    "bincount",
    "repeat_interleave",
)
"""Beginnings of the names of operations whose result the host has to wait for."""

READ, COPY = "reads ", "copies and waits "


class Ops(TorchDispatchMode):
    """Counts operations by name; those that wait carry a word before it."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.seen[self._word(func, args, kwargs)] += 1
        return func(*args, **kwargs)

    def _word(self, func, args, kwargs):
        name = func.overloadpacket.__name__
        if name.startswith(READS):
            return READ + name
        if name in {"index", "index_put_"} and any(map(_is_mask, args[1])):
            return READ + name
        if name == "copy_":
            waits = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
            return COPY + name if waits else name
        if name == "_to_copy" and kwargs.get("device") is not None:
            return name if kwargs.get("non_blocking") else COPY + name
        return name


def _is_mask(index):
    return index is not None and index.dtype in {torch.bool, torch.uint8}


class Passed:
    """An event of a device that is always done."""

    def record(self, stream):
        pass

    def query(self):
        return True


def lane(device):
    """Rows of a stash in host memory."""
    host = torch.empty(ROWS_PER_DEVICE, SCALARS_PER_ROW, dtype=torch.float64)
    return DeviceQueue(lambda: None, [(host[row], Passed()) for row in range(ROWS_PER_DEVICE)])


@contextmanager
def pretended_device(kind="cpu"):
    """Tensors of this kind are taken for a device's: never read, only copied behind the queue."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scalars, "ASYNC_DEVICE_TYPES", frozenset({kind}))
        patch.setattr(recorder, "cuda_lane", lane)
        yield


def added(loop, watched):
    """Operations that `loop` runs more often where `watched` is around it, and how much more.

    `loop` takes nothing, and does the same each time; `watched` makes the context of a run.
    """
    with Ops() as plain:
        loop()
    with pretended_device(), watched, Ops() as ours:
        loop()
    return ours.seen - plain.seen


def waits(operations):
    """Those of them that wait for a device."""
    return {name: n for name, n in operations.items() if name.startswith((READ, COPY))}
