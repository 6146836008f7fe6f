"""Loaded by every Python under `sentinel run`: waits for `import torch`, and does nothing else.

It must cost next to nothing, since launchers, package managers and data workers load it too: no
import but those of the interpreter's own start. Another `sitecustomize`, further on the path, is
loaded as if this one were not there.
"""

import os
import sys

_DIRECTORY = os.path.dirname(os.path.abspath(__file__))  # noqa: PTH100, PTH120 - pathlib costs more than all of this


class _TorchImportFinder:
    """Notices that torch is being imported, and hands over to the trainer's side of sentinel."""

    is_done = False

    def find_spec(self, name: str, path: object = None, target: object = None) -> object:
        """Finds nothing itself, but by the one who waits for torch from now on."""
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
    """Whether `sentinel` can be imported: this interpreter's own, else the one we belong to."""
    from importlib.util import find_spec, module_from_spec, spec_from_file_location  # noqa: PLC0415

    sign = os.path.join("client", "auto_start.py")  # noqa: PTH118
    found = find_spec("sentinel")
    if found is not None:
        # Somebody's module of the same name is not ours to load.
        places = found.submodule_search_locations or ()
        return any(os.path.isfile(os.path.join(place, sign)) for place in places)  # noqa: PTH113, PTH118
    package = os.path.dirname(os.path.dirname(_DIRECTORY))  # noqa: PTH120
    # By its file, and not by a path: its neighbours there are another interpreter's.
    ours = spec_from_file_location("sentinel", os.path.join(package, "__init__.py"))  # noqa: PTH118
    if ours is None or ours.loader is None:
        return False
    module = sys.modules["sentinel"] = module_from_spec(ours)
    ours.loader.exec_module(module)
    return True


def _load_next_sitecustomize() -> None:
    """Load the `sitecustomize` that would have been loaded without us, errors and all."""
    # What the interpreter itself imports with: importlib.util would have to be loaded.
    from _frozen_importlib import module_from_spec  # noqa: PLC0415
    from _frozen_importlib_external import PathFinder  # noqa: PLC0415

    spec = PathFinder.find_spec("sitecustomize", sys.path)
    if spec is not None and spec.loader is not None:
        theirs = sys.modules["sitecustomize"] = module_from_spec(spec)
        spec.loader.exec_module(theirs)


# Whoever looks at the path finds what would be there without us; children inherit the environment.
sys.path[:] = [place for place in sys.path if os.path.abspath(place or ".") != _DIRECTORY]  # noqa: PTH100
if sys.version_info >= (3, 11) and os.environ.get("SENTINEL_OFF", "0") in {"", "0"}:
    sys.meta_path.insert(0, _TorchImportFinder())  # type: ignore[arg-type]
_load_next_sitecustomize()
