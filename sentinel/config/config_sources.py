"""Layers: where settings are read from, the upper hiding the lower, and what each came from.

From the top: explicit arguments, the environment (`SENTINEL_PORT`, `SENTINEL_SINKS__SLACK__URL`),
the file that `SENTINEL_CONFIG` names, else `sentinel.toml`, else `[tool.sentinel]` of
`pyproject.toml`, both of the working directory. What the values mean is none of this file's
business.
"""

from __future__ import annotations

import re
import tomllib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

Tree = dict[str, Any]
Key = tuple[str, ...]

_PREFIX = "SENTINEL_"
_NOT_SETTINGS = frozenset(
    f"{_PREFIX}{name}"
    for name in (
        *("HOME", "RUNTIME_DIR", "RUN_ID", "OFF", "CONFIG", "LAUNCHED", "WITHIN"),
        *("REQUIRE_STACK", "REQUIRE_FRAMEWORKS"),
    )
)
_LISTS = frozenset({"disable", "on_critical"})
# Kubernetes sets these for a service that is called "sentinel".
_KUBERNETES = re.compile(r"SENTINEL_(SERVICE_\w+|PORT_\d+_\w+)|SENTINEL_PORT=tcp://.*")


class SettingsError(ValueError):
    """A setting is wrong. Says which, what kind of value it had, and what is valid; no value."""


@dataclass
class Layers:
    """The settings as given, unchecked: `tree`, and by key where each came from, `origins`."""

    tree: Tree = field(default_factory=dict)
    origins: dict[Key, str] = field(default_factory=dict)

    def lay(self, layer: Mapping[str, Any], origin: str) -> None:
        """Put `layer` over all that is there."""
        _lay(self, self.tree, layer, (), origin)

    def where(self, key: Key) -> str:
        """The setting by its full name, and where it, or what it is part of, was read."""
        origin = next((self.origins[part] for part in self._related(key)), "")
        return f'Setting "{".".join(key)}"' + (f" ({origin})" if origin else "")

    def _related(self, key: Key) -> Iterator[Key]:
        above = (key[:n] for n in range(len(key), 0, -1))
        yield from (part for part in above if part in self.origins)
        yield from (part for part in self.origins if part[: len(key)] == key)

    def table(self, key: Key, given: Any) -> Tree:
        """`given` as a table of settings of its own. Raises SettingsError if it is none."""
        if isinstance(given, Mapping):
            return dict(given)
        kind = type(given).__name__
        raise SettingsError(f"{self.where(key)}: the {kind} given is wrong: it must be a table.")


def gather(overrides: Mapping[str, Any], environ: Mapping[str, str], cwd: Path) -> Layers:
    """Read every layer. Overrides that are None count as not given.

    Raises SettingsError for a file that cannot be read.
    """
    layers = Layers()
    file, told = _file(environ, cwd)
    layers.lay(told, str(file))
    for name, value in sorted(environ.items()):
        if _is_setting(name, value):
            layers.lay(_nested(name, value), name)
    layers.lay({key: value for key, value in overrides.items() if value is not None}, "argument")
    return layers


def _lay(layers: Layers, tree: Tree, layer: Mapping[str, Any], above: Key, origin: str) -> None:
    for key, value in layer.items():
        # A secret laid over the file of that secret replaces it, and the other way round.
        for twin in {f"{key}_file", key.removesuffix("_file")} - layer.keys():
            tree.pop(twin, None)
        if isinstance(value, Mapping):
            below = tree.get(key)
            tree[key] = dict(below) if isinstance(below, Mapping) else {}
            _lay(layers, tree[key], value, (*above, key), origin)
        else:
            tree[key] = value
        if not isinstance(value, Mapping) or not value:
            layers.origins[(*above, key)] = origin


def _file(environ: Mapping[str, str], cwd: Path) -> tuple[Path, Tree]:
    named = environ.get(f"{_PREFIX}CONFIG")
    if named:
        path = cwd / Path(named).expanduser()
        return path, _toml(path)
    for path in (cwd / "sentinel.toml", cwd / "pyproject.toml"):
        if path.is_file():
            return path, _toml(path)
    return cwd, {}


def _toml(path: Path) -> Tree:
    try:
        content: Tree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        # A parser's message may quote what it stumbled over.
        place = re.search(r"at (line \d+, column \d+|end of document)", str(error))
        why = place[0] if place else type(error).__name__
        raise SettingsError(f"The settings file {path} cannot be read ({why}).") from None
    if path.name == "pyproject.toml":
        tools = Layers().table(("tool",), content.get("tool", {}))
        content = Layers().table(("tool", "sentinel"), tools.get("sentinel", {}))
    return content


def _is_setting(name: str, value: str) -> bool:
    ours = name.startswith(_PREFIX) and name not in _NOT_SETTINGS and value != ""
    return ours and not (_KUBERNETES.fullmatch(name) or _KUBERNETES.fullmatch(f"{name}={value}"))


def _nested(name: str, value: str) -> Tree:
    *above, last = name.removeprefix(_PREFIX).lower().split("__")
    leaf: Any = [item.strip() for item in value.split(",")] if last in _LISTS else value
    tree: Tree = {last: leaf}
    for key in reversed(above):
        tree = {key: tree}
    return tree
