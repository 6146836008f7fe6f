"""Applies a function to many logs or runs, in one process per core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


def map_in_processes(
    function: Callable[[Item], Answer], items: Sequence[Item], processes: int
) -> Iterator[Answer]:
    """The answers in the order of the items; in this process if one is enough.

    Raises BrokenProcessPool if a process is killed.
    """
    count = min(processes, len(items))
    if count <= 1:
        yield from map(function, items)
        return
    with ProcessPoolExecutor(count) as pool:
        yield from pool.map(function, items)
