"""Loaded by every Python under `sentinel run`; waits for `import torch` and does nothing else.

Launchers, package managers and data workers load it too, so it imports only what the interpreter
has already imported. The next `sitecustomize` on the path is loaded as if this one did not exist.
"""

import os
import sys

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - importing pathlib is too slow


class _TorchImportFinder:
    """Detects the import of torch, and then starts `AutoStart`."""

    is_done = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Find torch through `AutoStart`; find no other module."""
        if name != "torch" or self.is_done:
            return None
        self.is_done = True
        finders: list = sys.meta_path  # type: ignore[type-arg]
        finders[:] = [finder for finder in finders if finder is not self]
        try:
            if not _ensure_sentinel_importable():
                return None
            from sentinel.client.auto_start import AutoStart  # noqa: PLC0415

            return AutoStart().find_spec(name, path, target)
        except Exception:
            return None


def _ensure_sentinel_importable() -> bool:
    """Make `sentinel` importable: this interpreter's own, else the one of this file."""
    from importlib.util import find_spec, module_from_spec, spec_from_file_location  # noqa: PLC0415

    marker = os.path.join("client", "auto_start.py")  # noqa: PTH118
    existing = find_spec("sentinel")
    if existing is not None:
        # Another package of the same name must not be loaded.
        folders = existing.submodule_search_locations or ()
        return any(os.path.isfile(os.path.join(folder, marker)) for folder in folders)  # noqa: PTH113, PTH118
    package = os.path.dirname(os.path.dirname(_DIRECTORY))  # noqa: PTH120
    # Loaded by file: the directory may hold packages of another interpreter.
    spec = spec_from_file_location("sentinel", os.path.join(package, "__init__.py"))  # noqa: PTH118
    if spec is None or spec.loader is None:
        return False
    module = sys.modules["sentinel"] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return True


def _load_next_sitecustomize() -> None:
    """Load the `sitecustomize` that this one replaces; its errors propagate."""
    # Already imported by the interpreter, unlike importlib.util.
    from _frozen_importlib import module_from_spec  # noqa: PLC0415
    from _frozen_importlib_external import PathFinder  # noqa: PLC0415

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        module = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(module)


# Other code sees the path as it would be without sentinel; children inherit the environment.
sys.path[:] = [path for path in sys.path if os.path.abspath(path or ".") != _DIRECTORY]  # noqa: PTH100
if sys.version_info >= (3, 11) and os.environ.get("SENTINEL_OFF", "0") in {"", "0"}:
    sys.meta_path.insert(0, _TorchImportFinder())  # type: ignore[arg-type]
_load_next_sitecustomize()
