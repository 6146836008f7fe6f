"""The modules that own the parameters of an optimizer, and the names of these.

A search among all objects of the process takes some tenths of a second. The checks look among the
modules that were seen instead.
"""

from __future__ import annotations

import gc
import sys
from collections.abc import Callable, Collection, Iterable
from typing import Any
from weakref import ref

MAX_SEEN_MODULES = 256


def existing(references: Iterable[Callable[[], Any]]) -> list[Any]:
    """The objects of weak references that still exist."""
    return [each for each in (known() for known in references) if each is not None]


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


def is_norm(module: Any) -> bool:
    """Whether a module normalizes its input, by the name of its class."""
    return "norm" in type(module).__name__.lower()


def named_parameters(root: Any) -> list[tuple[str, Any]]:
    """The parameters of a root with their paths, in the order of the model; a shared one again."""
    return [
        (f"{path}.{name}" if path else name, each)
        for path, module in modules_of(root)
        for name, each in parameters_of(module)
    ]


def owner_of(ids: Collection[int], roots: Iterable[Any]) -> Any:
    """The module that owns most of the parameters with these ids, the outermost of several.

    None if none does.
    """
    best, most = None, (0, 0)
    for root in roots:
        owned = sum(id(each) in ids for _, each in named_parameters(root))
        size = owned, len(modules_of(root)) if owned else 0
        if size > most:
            best, most = root, size
    return best


class SeenModules:
    """Weak references to the modules whose parameters were asked for, as for an optimizer."""

    def __init__(self) -> None:
        self.references: dict[int, Callable[[], Any]] = {}
        """By the id of the module."""

    def add(self, module: Any) -> None:
        """Remember a module."""
        if len(self.references) < MAX_SEEN_MODULES:
            at = id(module)
            # A later module may have the same id.
            self.references[at] = ref(module, lambda _: self.references.pop(at, None))

    def modules(self) -> list[Any]:
        """Those that still exist."""
        return existing(self.references.values())
