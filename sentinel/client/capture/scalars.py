"""Scalars: reads a number from what people log, without ever running their code or waiting.

`float()` is called on nothing but plain numbers, NumPy scalars and PyTorch CPU tensors; no user's
object is printed, compared or converted. A tensor on a device is handed back for the stash, since
reading it here would wait for everything queued before it.
"""

from __future__ import annotations

import sys
from typing import Any

_NUMPY_KINDS = frozenset("fiu")
ASYNC_DEVICE_TYPES = frozenset({"cuda", "xpu"})
"""Kinds of device from which a number can be fetched without waiting; others are refused."""
MAX_NAME_CHARS = 256
"""Characters a name may have."""


class RejectedValueError(Exception):
    """Not a number we read; `reason` is one of the ring's drop reasons."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_number(value: object) -> Any:
    """The value as a float, or, if it is on a device, its detached tensor of one element.

    NaN and infinity are numbers here: they are what we look for. Raises Refused.

    >>> number(3), number(float("inf"))
    (3.0, inf)
    """
    kind = type(value)
    if kind is float:
        return value
    if kind is int:
        return _float_from_int(value)
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, (numpy.generic, numpy.ndarray)):
        return _from_numpy(value, numpy)
    torch = sys.modules.get("torch")
    if torch is not None and issubclass(kind, torch.Tensor):
        return _from_torch(value, torch)
    raise RejectedValueError("type")


def is_valid_name(name: object) -> bool:
    """Whether that is a name we keep: a plain text, neither empty nor endless."""
    return type(name) is str and 0 < len(name) <= MAX_NAME_CHARS


def _float_from_int(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise RejectedValueError("range") from None


def _from_numpy(value: Any, numpy: Any) -> float:
    # A user's subclass may bring its own idea of `item`.
    if type(value).__module__ != "numpy" or issubclass(type(value), numpy.bool_):
        raise RejectedValueError("type")
    if value.size != 1:
        raise RejectedValueError("shape")
    if value.dtype.kind not in _NUMPY_KINDS:
        raise RejectedValueError("type")
    return float(value.item())


def _from_torch(value: Any, torch: Any) -> Any:
    tensor = local_replica(value)
    if type(tensor) not in (torch.Tensor, torch.nn.Parameter) or tensor.layout != torch.strided:
        raise RejectedValueError("type")
    if tensor.numel() != 1:
        raise RejectedValueError("shape")
    if tensor.is_complex() or tensor.dtype == torch.bool:
        raise RejectedValueError("type")
    if tensor.device.type in ASYNC_DEVICE_TYPES:
        return tensor.detach()
    if tensor.device.type != "cpu":
        raise RejectedValueError("type")
    try:
        return float(tensor.item())
    except RuntimeError:
        # Under a transform such as vmap a tensor has no single value.
        raise RejectedValueError("type") from None


def local_replica(tensor: Any) -> Any:
    """Our part of a sharded tensor, if every rank has the same: never by a collective."""
    placements = getattr(tensor, "placements", None)
    if placements is None or not hasattr(tensor, "to_local"):
        return tensor
    if not all(placement.is_replicate() for placement in placements):
        raise RejectedValueError("shape")
    return tensor.to_local()
