"""Discover: one file, one class. `detectors/kl_blowup.py` holds `KlBlowup`.

Plug-ins bring the same by an entry point of the group `sentinel.<room>`, named as a file would be.
"""

from __future__ import annotations

import importlib
import logging
import pkgutil
from importlib.metadata import entry_points
from types import ModuleType
from typing import Any

log = logging.getLogger(__name__)


def load_classes(group: str) -> dict[str, Any]:
    """Name to class for every file of a room and every installed plug-in of it.

    Called by the agent and the commands, never at import. A plug-in that cannot be loaded is
    logged and left out; a file of ours that cannot is a bug, and raises.
    """
    ours = {
        name: getattr(module, _class_name(name)) for name, module in load_modules(group).items()
    }
    return ours | _load_plugins(group)


def load_modules(group: str) -> dict[str, ModuleType]:
    """Name to module for every file of a room."""
    package = importlib.import_module(f"sentinel.{group}")
    names = sorted(
        found.name
        for found in pkgutil.iter_modules(package.__path__)
        if not (found.ispkg or found.name.startswith("_"))
    )
    return {name: importlib.import_module(f"sentinel.{group}.{name}") for name in names}


def _load_plugins(group: str) -> dict[str, Any]:
    found: dict[str, Any] = {}
    for plugin in entry_points(group=f"sentinel.{group}"):
        try:
            found[plugin.name] = plugin.load()
        except Exception:
            log.exception("Plug-in %s of %s cannot be loaded and is left out", plugin.name, group)
    return found


def _class_name(name: str) -> str:
    return "".join(word.capitalize() for word in name.split("_"))
