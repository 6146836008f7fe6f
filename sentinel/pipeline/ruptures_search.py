"""The search of ruptures, imported without scipy, which takes six sevenths of that time.

ruptures imports functions of scipy for costs and searches that sentinel does not use. Each is
replaced by one that imports scipy when it is called.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from importlib import import_module
from types import ModuleType
from typing import Any

__all__ = ["Binseg"]

MODULES = ("scipy.signal", "scipy.spatial.distance", "scipy.stats.mstats")


class _DeferredModule(ModuleType):
    """A module of which only functions are imported, while it is not there yet."""

    def __getattr__(self, name: str) -> Callable[..., Any]:
        if name.startswith("__"):
            raise AttributeError(name)

        def call(*arguments: Any, **options: Any) -> Any:
            return getattr(import_module(self.__name__), name)(*arguments, **options)

        return call


@contextmanager
def deferred_scipy() -> Iterator[None]:
    """Defer the import of those modules that this process has not imported yet."""
    deferred = {name: _DeferredModule(name) for name in MODULES if name not in sys.modules}
    sys.modules.update(deferred)
    try:
        yield
    finally:
        for name in deferred:
            del sys.modules[name]


with deferred_scipy():
    from ruptures import Binseg
