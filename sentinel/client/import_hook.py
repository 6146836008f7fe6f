"""Arriving: acts as soon as a module has been imported, without importing it itself.

`importlib.abc` is not used: importing that alone would cost a tenth of our budget.
"""

from __future__ import annotations

import importlib.util
import sys
import threading
from collections.abc import Callable
from importlib.machinery import ModuleSpec
from types import ModuleType
from typing import Any


class ImportHook:
    """Calls `act` once `name` has been imported: now, if it is there already, else afterwards.

    `act` must not raise: it runs inside somebody's import statement.
    """

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self.name, self.callback = name, callback
        self._thread_state = threading.local()
        if name in sys.modules:
            callback()
        else:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """No longer wait for it."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Finds nothing itself: asks the others, and puts our loader around theirs."""
        if name != self.name or getattr(self._thread_state, "now", False):
            return None
        self._thread_state.now = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._thread_state.now = False
        if spec is not None and spec.loader is not None:
            loader: Any = _LoaderWrapper(spec.loader, self._on_imported)
            spec.loader = loader
        return spec

    def _on_imported(self) -> None:
        self.remove()
        self.callback()


class _LoaderWrapper:
    """Somebody's loader, with something to do after it."""

    def __init__(self, loader: Any, after_import: Callable[[], None]) -> None:
        self._loader, self._after_import = loader, after_import

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # The module must not remember us: it may be asked for its loader at any later time.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._after_import()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
