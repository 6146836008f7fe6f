"""Calls a function as soon as a module has been imported, without importing it.

`importlib.abc` is not used: importing it would take a tenth of the import budget of sentinel.
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
    """Calls `callback` once `name` has been imported: immediately if it already is.

    `callback` must not raise: it runs inside an import statement of the trainer.
    """

    def __init__(self, name: str, callback: Callable[[], None]) -> None:
        self.name, self.callback = name, callback
        self._thread_state = threading.local()
        if name in sys.modules:
            callback()
        else:
            sys.meta_path.insert(0, self)

    def remove(self) -> None:
        """Stop waiting for the module."""
        if self in sys.meta_path:
            sys.meta_path.remove(self)

    def find_spec(self, name: str, path: Any = None, target: Any = None) -> ModuleSpec | None:  # noqa: ARG002
        """Find the module with the other finders, and wrap its loader."""
        if name != self.name or getattr(self._thread_state, "is_searching", False):
            return None
        self._thread_state.is_searching = True
        try:
            spec = importlib.util.find_spec(name)
        finally:
            self._thread_state.is_searching = False
        if spec is not None and spec.loader is not None:
            loader: Any = _LoaderWrapper(spec.loader, self._on_imported)
            spec.loader = loader
        return spec

    def _on_imported(self) -> None:
        self.remove()
        self.callback()


class _LoaderWrapper:
    """A loader that calls a function after the wrapped loader has run."""

    def __init__(self, loader: Any, after_import: Callable[[], None]) -> None:
        self._loader, self._after_import = loader, after_import

    def create_module(self, spec: ModuleSpec) -> ModuleType | None:
        module: ModuleType | None = self._loader.create_module(spec)
        return module

    def exec_module(self, module: ModuleType) -> None:
        # Other code may inspect the loader of the module later: it must be the original one.
        if module.__spec__ is not None:
            module.__spec__.loader = self._loader
        module.__loader__ = self._loader
        self._loader.exec_module(module)
        self._after_import()

    def __getattr__(self, name: str) -> Any:
        return getattr(self._loader, name)
