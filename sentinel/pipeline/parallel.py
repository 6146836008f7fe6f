"""Applies a function to many logs or runs, in one process per core."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from typing import TypeVar

Item = TypeVar("Item")
Answer = TypeVar("Answer")


def available_cores() -> int:
    """The cores that this process may use."""
    if hasattr(os, "sched_getaffinity"):
        return len(os.sched_getaffinity(0))
    return os.cpu_count() or 1


class ProcessKilledError(OSError):
    """The process that applied the function to an item was killed."""

    def __init__(self) -> None:
        super().__init__("its process was killed, perhaps for its memory")


def map_in_processes(
    function: Callable[[Item], Answer], items: Sequence[Item], processes: int
) -> Iterator[Answer | ProcessKilledError]:
    """The answers in the order of the items; in this process if one is enough.

    If a process is killed, the items without an answer follow one at a time, each in a process of
    its own: they may need the memory that several took. The answer of an item whose own process is
    killed is a ProcessKilledError.
    """
    count = min(processes, len(items))
    if count <= 1:
        yield from map(function, items)
        return
    done = 0
    try:
        with ProcessPoolExecutor(count) as pool:
            for answer in pool.map(function, items):
                done += 1
                yield answer
    except BrokenProcessPool:
        yield from (_call_in_process(function, item) for item in items[done:])


def _call_in_process(function: Callable[[Item], Answer], item: Item) -> Answer | ProcessKilledError:
    try:
        with ProcessPoolExecutor(1) as pool:
            return pool.submit(function, item).result()
    except BrokenProcessPool:
        return ProcessKilledError()
