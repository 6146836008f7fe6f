"""Values that JSON can represent."""

from __future__ import annotations

from collections.abc import Mapping
from math import isfinite
from typing import Any


def json_safe(value: Any) -> Any:
    """The value with NaN and infinity as text, in nested mappings, lists and tuples too.

    >>> json_safe({"loss": float("nan"), "steps": (1, 2)})
    {'loss': 'nan', 'steps': [1, 2]}
    """
    if isinstance(value, float) and not isfinite(value):
        return str(value)
    if isinstance(value, Mapping):
        return {str(key): json_safe(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(each) for each in value]
    return value
