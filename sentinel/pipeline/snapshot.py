"""Snapshot: the state of detectors and incidents as plain JSON, and back.

Never pickle: only plain values, containers, enumerations and objects of classes whose modules are
already trusted (ours, or those of an installed plug-in) are written or read. Objects are restored
attribute by attribute, without running their constructors.
"""

from __future__ import annotations

import json
import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import fields, is_dataclass
from enum import Enum
from typing import Any

PLAIN = (str, int, float, bool, type(None))


class SnapshotError(ValueError):
    """State that cannot be written or read, and where in the object it is."""


def freeze(value: Any) -> str:
    """`value` as JSON text. Raises SnapshotError naming the attribute that cannot be kept."""
    return json.dumps(_down(value, "state"))


def thaw(text: str, modules: Iterable[str] = ()) -> Any:
    """What `freeze` wrote, built anew.

    Classes are taken from `sentinel` and from `modules`, and only from modules already imported.
    Raises SnapshotError if the text is damaged, names any other class, or was written when a class
    had not all the fields it has now.
    """
    try:
        return _up(json.loads(text), frozenset(modules))
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"A snapshot cannot be read ({type(error).__name__}): {error}"
        raise SnapshotError(message) from error


def _down(value: Any, where: str) -> Any:
    if isinstance(value, Enum):
        return {"enum": _name(type(value)), "value": value.name}
    if isinstance(value, PLAIN):
        return value
    if isinstance(value, dict):
        pairs = [[_down(k, where), _down(v, f"{where}[{k!r}]")] for k, v in value.items()]
        return {"dict": pairs}
    if isinstance(value, deque):
        return {"deque": [_down(v, where) for v in value], "maxlen": value.maxlen}
    for kind in (list, tuple, set, frozenset):
        if type(value) is kind:
            return {kind.__name__: [_down(v, f"{where}[]") for v in value]}
    return _object_down(value, where)


def _object_down(value: Any, where: str) -> Any:
    kind = type(value)
    open_to_us = hasattr(value, "__dict__") or hasattr(kind, "__slots__")
    if kind.__module__ == "builtins" or not open_to_us:
        message = f"{where} holds a {kind.__name__}, which cannot be kept: use plain values."
        raise SnapshotError(message)
    names = [name for name in _attributes(value) if hasattr(value, name)]
    state = {name: _down(getattr(value, name), f"{where}.{name}") for name in names}
    return {"object": _name(kind), "state": state}


def _attributes(value: Any) -> list[str]:
    slots = [n for k in type(value).__mro__ for n in getattr(k, "__slots__", ())]
    return [*getattr(value, "__dict__", ()), *slots]


def _up(data: Any, modules: frozenset[str]) -> Any:
    if isinstance(data, PLAIN):
        return data
    if "enum" in data:
        return _class(data["enum"], modules)[data["value"]]
    if "object" in data:
        return _object_up(data, modules)
    if "dict" in data:
        return {_up(k, modules): _up(v, modules) for k, v in data["dict"]}
    if "deque" in data:
        return deque((_up(v, modules) for v in data["deque"]), maxlen=data["maxlen"])
    for kind in (list, tuple, set, frozenset):
        if kind.__name__ in data:
            return kind(_up(v, modules) for v in data[kind.__name__])
    raise SnapshotError(f"unknown shape with keys {sorted(data)}")


def _object_up(data: Any, modules: frozenset[str]) -> Any:
    kind = _class(data["object"], modules)
    made = object.__new__(kind)
    for name, value in data["state"].items():
        # Frozen dataclasses refuse plain assignment.
        object.__setattr__(made, name, _up(value, modules))
    named = fields(kind) if is_dataclass(kind) else ()
    missing = [field.name for field in named if not hasattr(made, field.name)]
    if missing:
        # An earlier version wrote it, which had other things in mind.
        raise SnapshotError(f"{data['object']} was written without {', '.join(missing)}")
    return made


def _class(name: str, modules: frozenset[str]) -> Any:
    module, _, qualified = name.partition(":")
    if module.partition(".")[0] != "sentinel" and module not in modules:
        raise SnapshotError(f"class {name} is neither ours nor of a plug-in in use")
    return getattr(sys.modules[module], qualified)


def _name(kind: type) -> str:
    return f"{kind.__module__}:{kind.__qualname__}"
