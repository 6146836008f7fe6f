"""The stride of gradient flow that a callback was given."""

from __future__ import annotations

import difflib
from collections.abc import Iterable

from sentinel.client.arguments import SettingsError

_NAME = "every"


def check_stride(every: int | None, others: Iterable[str]) -> int | None:
    """The stride in steps; None for one that adapts to the cost.

    Raises SettingsError if it is no number of steps, or if one of the other arguments is a
    misspelt `every`.
    """
    for each in others:
        if difflib.get_close_matches(each, [_NAME], cutoff=0.7):
            raise SettingsError(f"unknown argument {each!r}: did you mean {_NAME!r}?")
    if every is not None and (not isinstance(every, int) or every < 1):
        raise SettingsError(f"every is {every!r}: give a number of steps, or None.")
    return every
