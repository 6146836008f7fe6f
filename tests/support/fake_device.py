"""A simulated device: host tensors that sentinel treats as device tensors, and a count of reads.

On a GPU, reading a value waits for everything queued before. `Ops` counts each operation that
PyTorch dispatches. A loop runs with and without sentinel, and the difference is caused by
sentinel: it must not contain a read, or a copy that waits.
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
"""Prefixes of the names of operations whose result the host waiting_operations for."""

READ, COPY = "reads ", "copies and waits "


class Ops(TorchDispatchMode):
    """Counts operations by name; those that wait have a prefix."""

    def __init__(self):
        super().__init__()
        self.seen = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        kwargs = kwargs or {}
        self.seen[self._label(func, args, kwargs)] += 1
        return func(*args, **kwargs)

    def _label(self, func, args, kwargs):
        name = func.overloadpacket.__name__
        if name.startswith(READS):
            return READ + name
        if name in {"index", "index_put_"} and any(map(_is_mask, args[1])):
            return READ + name
        if name == "copy_":
            is_blocking = not (args[2] if len(args) > 2 else kwargs.get("non_blocking"))
            return COPY + name if is_blocking else name
        if name == "_to_copy" and kwargs.get("device") is not None:
            return name if kwargs.get("non_blocking") else COPY + name
        return name


def _is_mask(index):
    return index is not None and index.dtype in {torch.bool, torch.uint8}


class CompletedEvent:
    """A device event that is always complete."""

    def record(self, stream):
        pass

    def query(self):
        return True


def host_queue(device):
    """A device queue whose rows are in host memory."""
    host = torch.empty(ROWS_PER_DEVICE, SCALARS_PER_ROW, dtype=torch.float64)
    return DeviceQueue(
        lambda: None,
        [(host[row], CompletedEvent()) for row in range(ROWS_PER_DEVICE)],
        lambda size: (torch.empty(size), CompletedEvent()),
    )


@contextmanager
def pretended_device(kind="cpu"):
    """Treat tensors of this device type as device tensors: copied, never read."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(scalars, "ASYNC_DEVICE_TYPES", frozenset({kind}))
        patch.setattr(recorder, "cuda_queue", host_queue)
        yield


def added_operations(loop, monitored):
    """Counts of the operations that `loop` runs more often inside the context `monitored`.

    `loop` takes no arguments and does the same each time.
    """
    with Ops() as plain:
        loop()
    with pretended_device(), monitored, Ops() as with_sentinel:
        loop()
    return with_sentinel.seen - plain.seen


def waiting_operations(operations):
    """The operations that wait for a device."""
    return {name: n for name, n in operations.items() if name.startswith((READ, COPY))}
