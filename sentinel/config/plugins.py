"""Finds detectors, causes and sinks: one class a file, and the entry points of plug-ins.

`detectors/kl_blowup.py` holds the class `KlBlowup`. A plug-in registers a class under the name that
such a file would have, by an entry point of the group `sentinel.detectors`.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from functools import cache
from types import ModuleType
from typing import TYPE_CHECKING, Any

from sentinel.model.nearest_name import nearest_hint

if TYPE_CHECKING:
    from importlib.metadata import EntryPoint

log = logging.getLogger(__name__)


def load_classes(group: str) -> dict[str, Any]:
    """The classes of a group by name, ours and those of installed plug-ins.

    A plug-in that cannot be imported is logged and left out. A module of sentinel that cannot be
    imported is a bug, and raises.
    """
    ours = {
        name: getattr(module, _class_name(name)) for name, module in load_modules(group).items()
    }
    return ours | _load_plugins(group)


def load_class(group: str, name: str) -> Any:
    """The class of one of `class_names`; no other module of the group is imported."""
    plugin = _load_plugins(group).get(name)
    return plugin or getattr(load_module(group, name), _class_name(name))


def class_names(group: str) -> list[str]:
    """The names that `load_classes` has, whose modules are not imported."""
    return [*module_names(group), *_load_plugins(group)]


def load_modules(group: str) -> dict[str, ModuleType]:
    """The public modules of the package `sentinel.<group>` by name."""
    return {name: load_module(group, name) for name in module_names(group)}


def load_module(group: str, name: str) -> ModuleType:
    """The module of that name in the package `sentinel.<group>`."""
    return importlib.import_module(f"sentinel.{group}.{name}")


@cache
def module_names(group: str) -> tuple[str, ...]:
    """The sorted names of the public modules of `sentinel.<group>`, which are not imported."""
    package = importlib.import_module(f"sentinel.{group}")
    names = (found.name for found in pkgutil.iter_modules(package.__path__) if not found.ispkg)
    return tuple(sorted(name for name in names if not name.startswith("_")))


def unknown_detector_text(detector: str) -> str:
    """Why `detector` is not the name of a detector, and which ones there are; empty if it is."""
    detectors = module_names("detectors")
    if detector in detectors:
        return ""
    hint = nearest_hint(detector, detectors)
    return f"no detector {detector!r}.{hint} Detectors: {', '.join(detectors)}."


@cache
def _load_plugins(group: str) -> dict[str, Any]:
    """The classes of installed plug-ins."""
    classes: dict[str, Any] = {}
    for plugin in _entry_points():
        if plugin.group == f"sentinel.{group}" and plugin.name not in classes:
            try:
                classes[plugin.name] = plugin.load()
            except Exception:
                log.exception("Plug-in %s of sentinel.%s cannot be imported", plugin.name, group)
    return classes


@cache
def _entry_points() -> list[EntryPoint]:
    """Those of the packages that have any for sentinel, in the order of the path.

    To find them reads a file of every installed package.
    """
    # Most commands load no group.
    from importlib.metadata import distributions  # noqa: PLC0415

    return [
        point
        for package in distributions()
        if "[sentinel." in (package.read_text("entry_points.txt") or "")
        for point in package.entry_points
    ]


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
