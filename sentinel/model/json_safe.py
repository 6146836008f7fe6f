"""Values that JSON can represent, and objects in JSON texts of others."""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any

JsonObject = dict[str, Any]

_MAX_DEPTH = 20


def json_safe(value: Any) -> Any:
    """The value with NaN and infinity as text, in nested mappings, lists and tuples too.

    >>> json_safe({"loss": float("nan"), "steps": (1, 2)})
    {'loss': 'nan', 'steps': [1, 2]}
    """
    # The check for a mapping is slow, and most values are texts and numbers.
    if isinstance(value, float):
        return value if isfinite(value) else str(value)
    if isinstance(value, str | int):
        return value
    if isinstance(value, Mapping):
        return {str(key): json_safe(each) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [json_safe(each) for each in value]
    return value


def finite_values(value: Any, depth: int = 0) -> Any:
    """The value with None for NaN and infinity, in nested mappings, lists and tuples too.

    Raises ValueError if it is nested more than 20 times.

    >>> finite_values({"loss": (1.0, float("nan"))})
    {'loss': [1.0, None]}
    """
    if isinstance(value, float):
        return value if isfinite(value) else None
    if depth > _MAX_DEPTH:
        raise ValueError("it is nested too deeply")
    if isinstance(value, Mapping):
        return {str(key): finite_values(each, depth + 1) for key, each in value.items()}
    if isinstance(value, list | tuple):
        return [finite_values(each, depth + 1) for each in value]
    return value


def parse_object(text: str) -> dict[str, Any]:
    """The object in a JSON text; empty if the text is no JSON, or no object.

    >>> parse_object('{"ok": true}'), parse_object("<html>")
    ({'ok': True}, {})
    """
    try:
        value = json.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value if isinstance(value, dict) else {}
