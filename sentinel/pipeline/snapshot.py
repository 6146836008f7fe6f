"""Serializes the state of the pipeline as JSON.

Unlike pickle, it reads and writes only plain values, containers, enumerations and objects of
trusted classes: those of sentinel and of installed plug-ins. Objects are restored attribute by
attribute; no constructor runs.
"""

from __future__ import annotations

import json
import sys
from base64 import b64decode, b64encode
from collections import deque
from collections.abc import Iterable
from contextlib import suppress
from dataclasses import fields, is_dataclass
from enum import Enum
from functools import cache
from typing import Any

SCALAR_TYPES = (str, int, float, bool, type(None))
_SCALARS = frozenset(SCALAR_TYPES)
"""The types of most items, which are tested first."""
_SEQUENCES = {each.__name__: each for each in (list, tuple, set, frozenset, deque)}


class SnapshotError(ValueError):
    """State that cannot be written or read."""


def serialize(value: Any) -> str:
    """`value` as JSON text. Raises SnapshotError that names an attribute which cannot be stored."""
    return json.dumps(_encode(value, "state"))


def deserialize(text: str, modules: Iterable[str] = ()) -> Any:
    """The value that `serialize` wrote.

    Classes must be of `sentinel` or of `modules`, whose modules must already be imported. Raises
    SnapshotError if the text is damaged, names another class or lacks a field of a dataclass.
    """
    try:
        return _decode(json.loads(text), frozenset(modules))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"A snapshot cannot be read ({type(error).__name__}): {error}"
        raise SnapshotError(message) from error


def _encode(value: Any, where: str) -> Any:
    kind = type(value)
    if kind in SCALAR_TYPES:
        return value
    if kind in {list, tuple, set, frozenset}:
        # Sets in one order, so that the same state gives the same text.
        items = sorted(value, key=str) if kind in {set, frozenset} else value
        return {kind.__name__: _encode_items(items, where)}
    if isinstance(value, Enum):
        encoded: dict[str, Any] = {"enum": _class_name(kind), "value": value.name}
    elif isinstance(value, bytes):
        encoded = {"bytes": b64encode(value).decode()}
    elif isinstance(value, SCALAR_TYPES):
        return value
    elif isinstance(value, dict):
        encoded = {"dict": _encode_pairs(value, where)}
    elif isinstance(value, deque):
        encoded = {"deque": _encode_items(value, where), "maxlen": value.maxlen}
    else:
        encoded = _encode_object(value, where)
    return encoded


def _encode_pairs(value: dict[Any, Any], where: str) -> list[list[Any]]:
    if _SCALARS.issuperset(map(type, (*value, *value.values()))):
        return [*map(list, value.items())]
    return [[_encode(k, where), _encode(v, f"{where}[{k!r}]")] for k, v in value.items()]


def _encode_items(items: Iterable[Any], where: str) -> list[Any]:
    if _SCALARS.issuperset(map(type, items)):
        return [*items]
    return [_encode(item, f"{where}[]") for item in items]


def _encode_object(value: Any, where: str) -> Any:
    kind: Any = type(value)
    # Of a named tuple, or another container of a class of its own, the items would be lost.
    is_restorable = not isinstance(value, (list, tuple, set, frozenset)) and (
        hasattr(value, "__dict__") or hasattr(kind, "__slots__")
    )
    if kind.__module__ == "builtins" or not is_restorable:
        message = f"{where} holds a {kind.__name__}, which cannot be stored: use plain values."
        raise SnapshotError(message)
    attributes = {name: getattr(value, name) for name in _slots(kind) if hasattr(value, name)}
    if hasattr(value, "__dict__"):
        own = {**value.__dict__}
        # Up to Python 3.12, reading the attributes as a dict makes every later access to them
        # slower, unless the object gets a dict that it does not share with others of its class.
        with suppress(AttributeError, TypeError):  # of a type that is written in C
            object.__setattr__(value, "__dict__", own)
        attributes = {**own, **attributes}
    state = {
        name: item if type(item) in _SCALARS else _encode(item, f"{where}.{name}")
        for name, item in attributes.items()
    }
    return {"object": _class_name(kind), "state": state}


@cache
def _slots(kind: type) -> list[str]:
    return [name for base in kind.__mro__ for name in getattr(base, "__slots__", ())]


def _decode(data: Any, modules: frozenset[str]) -> Any:
    if isinstance(data, SCALAR_TYPES):
        return data
    if "enum" in data:
        return _resolve_class(data["enum"], modules)[data["value"]]
    if "object" in data:
        return _decode_object(data, modules)
    if "dict" in data:
        return {_decode(k, modules): _decode(v, modules) for k, v in data["dict"]}
    for name, kind in _SEQUENCES.items():
        if name in data:
            items = (_decode(item, modules) for item in data[name])
            return deque(items, maxlen=data["maxlen"]) if kind is deque else kind(items)
    if "bytes" in data:
        return b64decode(data["bytes"], validate=True)
    raise SnapshotError(f"unknown shape with keys {sorted(data)}")


def _decode_object(data: Any, modules: frozenset[str]) -> Any:
    kind = _resolve_class(data["object"], modules)
    restored = object.__new__(kind)
    for name, item in data["state"].items():
        value = item if type(item) in _SCALARS else _decode(item, modules)
        # Frozen dataclasses refuse plain assignment.
        object.__setattr__(restored, name, value)
    declared = fields(kind) if is_dataclass(kind) else ()
    missing = [field.name for field in declared if not hasattr(restored, field.name)]
    if missing:
        # An earlier version wrote it.
        raise SnapshotError(f"{data['object']} lacks {', '.join(missing)}")
    return restored


def _resolve_class(name: str, modules: frozenset[str]) -> Any:
    module, _, qualified = name.partition(":")
    if module.partition(".")[0] != "sentinel" and module not in modules:
        raise SnapshotError(f"class {name} is neither of sentinel nor of a plug-in in use")
    return getattr(sys.modules[module], qualified)


def _class_name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
