"""The modules that own the parameters of an optimizer, found among all objects of the process."""

from __future__ import annotations

import gc
import sys
from collections.abc import Collection
from typing import Any


def root_modules() -> list[Any]:
    """Every module of the process that is part of no other.

    Nothing of a module is called: any object of the process may be one, and override anything.
    """
    kinds, pending = set(), [sys.modules["torch"].nn.Module]
    while pending:
        kind = pending.pop()
        if kind not in kinds:
            kinds.add(kind)
            pending += type.__subclasses__(kind)
    modules = [each for each in gc.get_objects() if type(each) in kinds]
    inner = {id(child) for each in modules for child in vars(each).get("_modules", {}).values()}
    return [each for each in modules if id(each) not in inner and "_modules" in vars(each)]


def modules_of(root: Any) -> list[tuple[str, Any]]:
    """The path of each module in a root and the module, itself included, in the order of the model.

    A module that is used twice has its first path.
    """
    found: list[tuple[str, Any]] = []
    seen: set[int] = set()
    pending = [("", root)]
    while pending:
        path, module = pending.pop()
        if module is None or id(module) in seen:
            continue
        seen.add(id(module))
        found.append((path, module))
        children = [*(vars(module).get("_modules") or {}).items()]
        prefix = f"{path}." if path else ""
        pending += [(f"{prefix}{name}", child) for name, child in reversed(children)]
    return found


def parameters_of(module: Any) -> list[tuple[str, Any]]:
    """The parameters of a module alone, by name."""
    own = (vars(module).get("_parameters") or {}).items()
    return [(name, each) for name, each in own if each is not None]


def named_parameters(root: Any) -> list[tuple[str, Any]]:
    """The parameters of a root with their paths, in the order of the model; a shared one again."""
    return [
        (f"{path}.{name}" if path else name, each)
        for path, module in modules_of(root)
        for name, each in parameters_of(module)
    ]


def owner_of(ids: Collection[int]) -> Any:
    """The root module that owns most of the parameters with these ids; None if none does."""
    best, most = None, 0
    for root in root_modules():
        owned = sum(id(each) in ids for _, each in named_parameters(root))
        if owned > most:
            best, most = root, owned
    return best
