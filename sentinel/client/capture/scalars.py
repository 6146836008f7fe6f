"""Reads numbers from logged values without running user code and without waiting for a device.

`float()` is only called on plain numbers, NumPy scalars and PyTorch CPU tensors; no other object is
printed, compared or converted. A tensor on a device is returned as it is, to be copied later:
reading it here would wait for everything queued before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable
from typing import Any

_NUMPY_KINDS = frozenset("fiu")
ASYNC_DEVICE_TYPES = frozenset({"cuda", "xpu"})
"""Device types from which a number can be copied without waiting; others are rejected."""
MAX_NAME_CHARS = 256


class RejectedValueError(Exception):
    """A value that is not read as a number; `reason` is one of the ring's drop reasons."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


def read_number(value: object) -> Any:
    """The value as a float, or, if it is on a device, its detached tensor of one element.

    NaN and infinity are accepted. Raises RejectedValueError.

    >>> read_number(3), read_number(float("inf"))
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


def split_by_device(
    items: Iterable[tuple[Any, Any]], count_drop: Callable[[str], None] | None = None
) -> tuple[dict[Any, float], dict[Any, Any]]:
    """Numbers by name, and tensors still on a device by name, in the order of `items`.

    Other values are left out; `count_drop`, if given, is called with the reason.

    >>> split_by_device([("loss", 1), ("note", "text")])
    ({'loss': 1.0}, {})
    """
    numbers: dict[Any, float] = {}
    tensors: dict[Any, Any] = {}
    for name, value in items:
        try:
            number = read_number(value)
        except RejectedValueError as rejection:
            if count_drop is not None:
                count_drop(rejection.reason)
            continue
        (numbers if type(number) is float else tensors)[name] = number
    return numbers, tensors


def is_valid_name(name: object) -> bool:
    """Whether `name` is a plain `str` of 1 to `MAX_NAME_CHARS` characters."""
    return type(name) is str and 0 < len(name) <= MAX_NAME_CHARS


def _float_from_int(value: Any) -> float:
    try:
        return float(value)
    except OverflowError:
        raise RejectedValueError("range") from None


def _from_numpy(value: Any, numpy: Any) -> float:
    # A user's subclass may override `item`.
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
        # Under a transform such as vmap, a tensor has no single value.
        raise RejectedValueError("type") from None


def local_replica(tensor: Any) -> Any:
    """The local part of a sharded tensor that every rank holds in full; runs no collective."""
    placements = getattr(tensor, "placements", None)
    if placements is None or not hasattr(tensor, "to_local"):
        return tensor
    if not all(placement.is_replicate() for placement in placements):
        raise RejectedValueError("shape")
    return tensor.to_local()
