"""Plain data that objects hold, given back as it was: what a loss function counts or appends."""

from __future__ import annotations

import copy
import operator
from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, MutableMapping, Sequence
from contextlib import contextmanager
from functools import partial
from typing import Any

import torch

_MAX_TENSOR_ELEMENTS = 65_536
"""Tensors up to this size are copied; larger ones, such as a buffered batch, are not."""
_MAX_CONTAINER_ITEMS = 10_000
"""The items of larger containers are not looked into."""
_MAX_DEPTH = 6

_TORCH_ATTRIBUTES = frozenset(
    {"_parameters", "_buffers", "_modules", "_non_persistent_buffers_set", "_hf_hook"}
)
"""Attributes of a module that `preserved` restores, or that are no data."""
_STATE_MODULES = ("trl.", "transformers.trainer_callback")
"""Objects of these modules are looked into: they hold counters and moments."""


@contextmanager
def plain_state_preserved(objects: Iterable[Any]) -> Iterator[None]:
    """Restore the attributes of the objects when the block ends, however it ends.

    Restored are which object each attribute names, the items of lists, dicts, sets and deques
    within them, and the content of small tensors. Weights, buffers and hooks of modules are not:
    `preserved` restores those.
    """
    snapshot = _Snapshot()
    restore = [snapshot.of_object(each) for each in objects]
    try:
        yield
    finally:
        _run_all(restore)


Restore = Callable[[], None]


def _nothing() -> None:
    """Restore a value that cannot change."""


def _run_all(restores: Iterable[Restore]) -> None:
    for each in restores:
        each()


class _Snapshot:
    """Copies containers once each, since several attributes may name one."""

    def __init__(self) -> None:
        self._seen: set[int] = set()

    def of_object(self, owner: Any, depth: int = 0) -> Restore:
        attributes = vars(owner)
        kept = {name: value for name, value in attributes.items() if name not in _TORCH_ATTRIBUTES}
        nested = [self._of(value, depth + 1) for value in kept.values()]

        def restore() -> None:
            for name in [*attributes]:
                if name not in kept and name not in _TORCH_ATTRIBUTES:
                    del attributes[name]
            attributes.update(kept)
            _run_all(nested)

        return restore

    def _of(self, value: Any, depth: int) -> Restore:  # noqa: PLR0911 - one for each type
        if value is None or isinstance(value, bool | int | float | str | bytes):
            return _nothing
        if depth > _MAX_DEPTH or id(value) in self._seen:
            return _nothing
        self._seen.add(id(value))
        if isinstance(value, dict | list | deque | set):
            return self._of_container(value, depth)
        if isinstance(value, tuple):
            return partial(_run_all, self._of_items(value, depth))
        if isinstance(value, torch.Tensor):
            return _of_tensor(value)
        if type(value).__module__.startswith(_STATE_MODULES) and hasattr(value, "__dict__"):
            return self.of_object(value, depth)
        return _nothing

    def _of_items(self, values: Collection[Any], depth: int) -> list[Restore]:
        items = values if len(values) <= _MAX_CONTAINER_ITEMS else ()
        return [self._of(each, depth + 1) for each in items]

    def _of_container(self, value: Any, depth: int) -> Restore:
        kept: Any = {**value} if isinstance(value, dict) else [*value]
        nested: list[Restore] = []
        if not isinstance(value, set):
            items = kept.values() if isinstance(value, dict) else kept
            nested = self._of_items(items, depth)

        def restore() -> None:
            # A list of callbacks may be iterated over at this moment: it is written only if needed.
            if not _has_items(value, kept):
                value.clear()
                (value.update if isinstance(value, dict | set) else value.extend)(kept)
            _run_all(nested)

        return restore


def _has_items(value: Any, kept: Any) -> bool:
    """Whether a container has these items, each the same object; of a set, equal ones."""
    if isinstance(value, set):
        return value == {*kept}
    if len(value) != len(kept) or not all(map(operator.is_, value, kept)):
        return False
    return not isinstance(value, dict) or all(map(operator.is_, value.values(), kept.values()))


def _of_tensor(value: Any) -> Restore:
    is_plain = type(value) is torch.Tensor and not value.is_inference()
    if not is_plain or value.numel() > _MAX_TENSOR_ELEMENTS or value.is_leaf is False:
        return _nothing
    kept, version = value.detach().clone(), value._version  # noqa: SLF001 - it has no public name

    def restore() -> None:
        if value._version != version:  # noqa: SLF001
            with torch.no_grad():
                value.copy_(kept)

    return restore


@contextmanager
def attribute_set(owner: Any, name: str, value: Any) -> Iterator[None]:
    """Set an attribute of an object for the block, also one that hides a method."""
    attributes = vars(owner)
    is_missing, before = name not in attributes, attributes.get(name)
    attributes[name] = value
    try:
        yield
    finally:
        if is_missing:
            attributes.pop(name, None)
        else:
            attributes[name] = before


@contextmanager
def learning_rates_set(optimizer: Any, rates: Sequence[Any]) -> Iterator[None]:
    """Set the learning rates of the groups of an optimizer for the block; none if `rates` is empty.

    Trainers move the rate on before their callbacks are called: at the end of the training it is
    that of a step that never comes, 0 by most schedules.
    """
    groups = optimizer.param_groups[: len(rates)]
    now = [group["lr"] for group in groups]
    try:
        for group, rate in zip(groups, rates, strict=False):
            group["lr"] = rate
        yield
    finally:
        for group, rate in zip(groups, now, strict=True):
            group["lr"] = rate


def ignore(*_: Any, **__: Any) -> None:
    """Take the place of logging."""


def first_argument(value: Any, *_: Any, **__: Any) -> Any:
    """Take the place of gathering: a rank keeps its own values."""
    return value


def copy_of_inputs(value: Any) -> Any:
    """A copy of the inputs of a loss: the same types, with tensors of their own."""
    if isinstance(value, torch.Tensor):
        # A tensor may be a view of a much larger one, which deepcopy would copy as a whole.
        return value.detach().clone()
    if isinstance(value, MutableMapping):
        result = copy.copy(value)
        for name, each in value.items():
            result[name] = copy_of_inputs(each)
        return result
    if type(value) in {list, tuple}:
        return type(value)(map(copy_of_inputs, value))
    return copy.deepcopy(value)
