"""Reads numbers from logged values without running user code and without waiting for a device.

`float()` is only called on plain numbers, NumPy scalars and PyTorch CPU tensors; no other object is
printed, compared or converted. A tensor on a device is returned as it is, to be copied later:
reading it here would wait for everything queued before it.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any

_NUMPY_KINDS = frozenset("fiu")
_MAX_PACKED_BYTES = 8
"""Size of the largest NumPy scalars that a float holds as their `item` does."""
PACKED_TYPES: set[type] = {float, int}
"""Types of which `struct` packs what `read_number` returns, without running code of the user's
objects: exactly these, and not their subclasses. NumPy's scalars are added as they are read."""
REJECTED_TYPES = frozenset({bool, str, bytes, dict, list, tuple, complex, type(None)})
"""Built-in types of which no value is a number."""
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
    number = number_or_reason(value)
    if type(number) is str:
        raise RejectedValueError(number)
    return number


def split_by_device(
    values: Mapping[Any, Any], count_drop: Callable[[str], None] | None = None
) -> tuple[dict[Any, float], dict[Any, Any]]:
    """Numbers by name, and tensors still on a device by name, in the order of `values`.

    Other values are left out; `count_drop`, if given, is called with the reason.

    >>> split_by_device({"loss": 1, "note": "text"})
    ({'loss': 1.0}, {})
    """
    numbers, tensors = dict(values), {}
    for name, value in values.items():
        if type(value) is not float:
            numbers[name] = number = number_or_reason(value)
            if type(number) is not float:
                del numbers[name]
                if type(number) is not str:
                    tensors[name] = number
                elif count_drop is not None:
                    count_drop(number)
    return numbers, tensors


def read_host_numbers(values: Iterable[Any]) -> tuple[float, ...] | None:
    """Packed types and strided CPU tensors of one element as numbers; None for anything else."""
    torch = sys.modules.get("torch")
    if torch is None or "cpu" in ASYNC_DEVICE_TYPES:
        return None
    tensor_types, strided = (torch.Tensor, torch.nn.Parameter), torch.strided
    numbers: list[float] = []
    try:
        for value in values:
            if type(value) in tensor_types:
                if not value.is_cpu or value.layout is not strided:
                    return None
                numbers.append(value.item())
            else:
                numbers.append(value)
    except RuntimeError:
        # More than one element; or under a transform such as vmap, where it has no single value.
        return None
    return tuple(numbers) if PACKED_TYPES.issuperset(map(type, numbers)) else None


def is_valid_name(name: object) -> bool:
    """Whether `name` is a plain `str` of 1 to `MAX_NAME_CHARS` characters."""
    return type(name) is str and 0 < len(name) <= MAX_NAME_CHARS


def number_or_reason(value: Any) -> Any:
    """What `read_number` returns, or, as text, the reason why it rejects the value.

    An exception for each rejected value would cost more than the rest of a log.
    """
    kind = type(value)
    if kind in PACKED_TYPES:
        return _to_float(value)
    if kind in REJECTED_TYPES:
        return "type"
    torch = sys.modules.get("torch")
    # The metaclass of tensors makes `issubclass` slow.
    if torch is not None and (kind is torch.Tensor or issubclass(kind, torch.Tensor)):
        return _from_torch(value, kind, torch)
    numpy = sys.modules.get("numpy")
    if numpy is not None and issubclass(kind, (numpy.generic, numpy.ndarray)):
        return _from_numpy(value, kind, numpy)
    return "type"


def _to_float(value: Any) -> float | str:
    try:
        return float(value)
    except OverflowError:
        return "range"


def _from_numpy(value: Any, kind: type, numpy: Any) -> float | str:
    # A user's subclass may override `item`.
    if kind.__module__ != "numpy" or issubclass(kind, numpy.bool_):
        return "type"
    if value.size != 1:
        return "shape"
    if value.dtype.kind not in _NUMPY_KINDS:
        return "type"
    if issubclass(kind, numpy.generic) and value.dtype.itemsize <= _MAX_PACKED_BYTES:
        PACKED_TYPES.add(kind)
    return float(value.item())


def _from_torch(value: Any, kind: type, torch: Any) -> Any:
    if kind is not torch.Tensor and kind is not torch.nn.Parameter:
        try:
            value = local_replica(value)
        except RejectedValueError as rejection:
            return rejection.reason
        if type(value) not in (torch.Tensor, torch.nn.Parameter):
            return "type"
    if value.layout is not torch.strided:
        return "type"
    if value.numel() != 1:
        return "shape"
    device = "cpu" if value.is_cpu else value.device.type
    if device in ASYNC_DEVICE_TYPES:
        is_real = not value.dtype.is_complex and value.dtype is not torch.bool
        return value.detach() if is_real else "type"
    return _from_host_tensor(value) if device == "cpu" else "type"


def _from_host_tensor(value: Any) -> float | str:
    try:
        number = value.item()
    except RuntimeError:
        # Under a transform such as vmap, a tensor has no single value.
        return "type"
    if type(number) is float:
        return number
    return _to_float(number) if type(number) is int else "type"


def local_replica(tensor: Any) -> Any:
    """The local part of a sharded tensor that every rank holds in full; runs no collective."""
    placements = getattr(tensor, "placements", None)
    if placements is None or not hasattr(tensor, "to_local"):
        return tensor
    if not all(placement.is_replicate() for placement in placements):
        raise RejectedValueError("shape")
    return tensor.to_local()
