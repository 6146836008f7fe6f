"""Worker generators: whether each worker of a data loader draws the same random numbers.

A worker has a copy of the data set, and with it of a generator that the data set, its transforms or
their module hold. PyTorch seeds only its own generator, that of `random` and that of NumPy in each
worker. What the code of the data set refers to is looked at; nothing of it is called.
"""

from __future__ import annotations

import random
import sys
from collections.abc import Iterable, Iterator
from types import CodeType, FunctionType, MethodType, ModuleType
from typing import Any

ENTRIES = ("__getitem__", "__getitems__", "__call__", "forward")
"""Methods that give an example, or transform one."""
SEEDING = frozenset(
    {
        "get_worker_info", "default_rng", "RandomState", "Generator", "Random", "setstate",
        "set_state", "bit_generator", "spawn", "jumped", "advance",
    }
)  # fmt: skip
"""Names in code that gives a worker, or an example, random numbers of its own; or any with `seed`.
"""
MAX_DEPTH, MAX_ITEMS, MAX_OBJECTS = 4, 32, 256
"""Levels of objects that hold each other, items of a list of transforms, and objects in all."""


def copied_generator(iterator: Any) -> str:
    """The name of a generator that each worker of this iterator copies; empty if there is none.

    Data sets that are streams may shuffle alike on each worker on purpose, and a function that
    begins a worker may seed what it likes.
    """
    kinds = sys.modules["torch.utils.data.dataloader"]._DatasetKind  # noqa: SLF001 - there is no public name
    if (
        getattr(iterator, "_num_workers", 0) < 2
        or getattr(iterator, "_worker_init_fn", None) is not None
        or getattr(iterator, "_dataset_kind", None) != kinds.Map
    ):
        return ""
    return next(_find(getattr(iterator, "_dataset", None), MAX_DEPTH, set()), "")


def _find(owner: Any, depth: int, seen: set[int]) -> Iterator[str]:
    """The names of generators from which an object, or one that it holds, draws numbers.

    `seen` has the ids of the objects that were looked at.
    """
    # A module of Python, or a class, leads to all of a package.
    if not depth or isinstance(owner, ModuleType | type):
        return
    if id(owner) in seen or len(seen) == MAX_OBJECTS:
        return
    seen.add(id(owner))
    if isinstance(owner, list | tuple):
        for each in owner[:MAX_ITEMS]:
            yield from _find(each, depth - 1, seen)
        return
    attributes = getattr(owner, "__dict__", {})
    functions = [*_functions(owner)]
    names = {name for each in functions for name in _names(each.__code__)}
    if not SEEDING.isdisjoint(names) or any("seed" in each.lower() for each in names):
        # It may seed what it holds as well.
        return
    known = {**{at: each for fn in functions for at, each in _outer(fn)}, **attributes}
    yield from (name for name, each in known.items() if name in names and _is_generator(each))
    for each in attributes.values() if not isinstance(owner, FunctionType) else ():
        if isinstance(each, list | tuple | FunctionType) or hasattr(each, "__dict__"):
            yield from _find(each, depth - 1, seen)


def _functions(owner: Any) -> Iterator[FunctionType]:
    """The functions of an object that run for an example, and those of its methods they name."""
    if isinstance(owner, MethodType):
        owner = owner.__func__
    if isinstance(owner, FunctionType):
        yield owner
        return
    pending, seen = [*ENTRIES], {*ENTRIES}
    while pending:
        function = getattr(type(owner), pending.pop(), None)
        if isinstance(function, FunctionType):
            yield function
            new = {*_names(function.__code__)} - seen
            seen |= new
            pending += new


def _names(code: CodeType) -> Iterable[str]:
    """The attributes, and the variables of modules and closures, that code names."""
    inner = (each for each in code.co_consts if isinstance(each, CodeType))
    return {*code.co_names, *code.co_freevars, *(name for each in inner for name in _names(each))}


def _outer(function: FunctionType) -> Iterator[tuple[str, Any]]:
    """The variables of its module and of its closure that a function names, with their values."""
    for name in function.__code__.co_names:
        if name in function.__globals__:
            yield name, function.__globals__[name]
    for name, cell in zip(function.__code__.co_freevars, function.__closure__ or (), strict=True):
        try:
            yield name, cell.cell_contents
        except ValueError:
            # It has no value yet.
            continue


def _is_generator(value: Any) -> bool:
    """Whether it draws random numbers by a state of its own, which PyTorch seeds in no worker."""
    torch, kind = sys.modules["torch"], type(value)
    is_of_numpy = kind.__module__.startswith("numpy.random") and kind.__name__ in _NUMPY_KINDS
    shared = (
        getattr(random, "_inst", None),
        torch.default_generator,
        getattr(sys.modules.get("numpy.random.mtrand"), "_rand", None),
    )
    is_generator = is_of_numpy or isinstance(value, (random.Random, torch.Generator))
    return is_generator and not any(value is each for each in shared)


_NUMPY_KINDS = ("Generator", "RandomState")
