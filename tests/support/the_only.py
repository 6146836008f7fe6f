"""The only item of a collection; a failure shows all of them, which unpacking does not."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

Item = TypeVar("Item")


def the_only(items: Iterable[Item]) -> Item:
    """The only one of `items`; AssertionError with all of them if there is not exactly one."""
    found = list(items)
    assert len(found) == 1, "\n".join([f"{len(found)} items", *map(str, found)])
    return found[0]
