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

ConfigTree = dict[str, Any]
ConfigPath = tuple[str, ...]

_ENV_PREFIX = "SENTINEL_"
_NOT_SETTINGS = frozenset(
    f"{_ENV_PREFIX}{name}"
    for name in (
        *("HOME", "RUNTIME_DIR", "RUN_ID", "OFF", "CONFIG", "LAUNCHED", "WITHIN"),
        *("REQUIRE_STACK", "REQUIRE_FRAMEWORKS"),
    )
)
_LIST_SETTINGS = frozenset({"disable", "on_critical"})
# Kubernetes sets these for a service that is called "sentinel".
_KUBERNETES_SERVICE_VARIABLE = re.compile(
    r"SENTINEL_(SERVICE_\w+|PORT_\d+_\w+)|SENTINEL_PORT=tcp://.*"
)


class ConfigError(ValueError):
    """A setting is wrong. Says which, what kind of value it had, and what is valid; no value."""


@dataclass
class ConfigSources:
    """The settings as given, unchecked: `tree`, and by key where each came from, `origins`."""

    tree: ConfigTree = field(default_factory=dict)
    origins: dict[ConfigPath, str] = field(default_factory=dict)

    def overlay(self, layer: Mapping[str, Any], origin: str) -> None:
        """Put `layer` over all that is there."""
        _overlay(self, self.tree, layer, (), origin)

    def describe(self, key: ConfigPath) -> str:
        """The setting by its full name, and where it, or what it is part of, was read."""
        origin = next((self.origins[part] for part in self._related(key)), "")
        return f'Setting "{".".join(key)}"' + (f" ({origin})" if origin else "")

    def _related(self, key: ConfigPath) -> Iterator[ConfigPath]:
        above = (key[:n] for n in range(len(key), 0, -1))
        yield from (part for part in above if part in self.origins)
        yield from (part for part in self.origins if part[: len(key)] == key)

    def as_table(self, key: ConfigPath, given: Any) -> ConfigTree:
        """`given` as a table of settings of its own. Raises SettingsError if it is none."""
        if isinstance(given, Mapping):
            return dict(given)
        kind = type(given).__name__
        raise ConfigError(f"{self.describe(key)}: the {kind} given is wrong: it must be a table.")


def read_sources(
    overrides: Mapping[str, Any], environ: Mapping[str, str], cwd: Path
) -> ConfigSources:
    """Read every layer. Overrides that are None count as not given.

    Raises SettingsError for a file that cannot be read.
    """
    layers = ConfigSources()
    file, told = _read_config_file(environ, cwd)
    layers.overlay(told, str(file))
    for name, value in sorted(environ.items()):
        if _is_setting(name, value):
            layers.overlay(_parse_variable(name, value), name)
    layers.overlay(
        {key: value for key, value in overrides.items() if value is not None}, "argument"
    )
    return layers


def _overlay(
    layers: ConfigSources,
    tree: ConfigTree,
    layer: Mapping[str, Any],
    above: ConfigPath,
    origin: str,
) -> None:
    for key, value in layer.items():
        # A secret laid over the file of that secret replaces it, and the other way round.
        for twin in {f"{key}_file", key.removesuffix("_file")} - layer.keys():
            tree.pop(twin, None)
        if isinstance(value, Mapping):
            below = tree.get(key)
            tree[key] = dict(below) if isinstance(below, Mapping) else {}
            _overlay(layers, tree[key], value, (*above, key), origin)
        else:
            tree[key] = value
        if not isinstance(value, Mapping) or not value:
            layers.origins[(*above, key)] = origin


def _read_config_file(environ: Mapping[str, str], cwd: Path) -> tuple[Path, ConfigTree]:
    named = environ.get(f"{_ENV_PREFIX}CONFIG")
    if named:
        path = cwd / Path(named).expanduser()
        return path, _read_toml(path)
    for path in (cwd / "sentinel.toml", cwd / "pyproject.toml"):
        if path.is_file():
            return path, _read_toml(path)
    return cwd, {}


def _read_toml(path: Path) -> ConfigTree:
    try:
        content: ConfigTree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        # A parser's message may quote what it stumbled over.
        place = re.search(r"at (line \d+, column \d+|end of document)", str(error))
        why = place[0] if place else type(error).__name__
        raise ConfigError(f"The settings file {path} cannot be read ({why}).") from None
    if path.name == "pyproject.toml":
        tools = ConfigSources().as_table(("tool",), content.get("tool", {}))
        content = ConfigSources().as_table(("tool", "sentinel"), tools.get("sentinel", {}))
    return content


def _is_setting(name: str, value: str) -> bool:
    ours = name.startswith(_ENV_PREFIX) and name not in _NOT_SETTINGS and value != ""
    return ours and not (
        _KUBERNETES_SERVICE_VARIABLE.fullmatch(name)
        or _KUBERNETES_SERVICE_VARIABLE.fullmatch(f"{name}={value}")
    )


def _parse_variable(name: str, value: str) -> ConfigTree:
    *above, last = name.removeprefix(_ENV_PREFIX).lower().split("__")
    leaf: Any = [item.strip() for item in value.split(",")] if last in _LIST_SETTINGS else value
    tree: ConfigTree = {last: leaf}
    for key in reversed(above):
        tree = {key: tree}
    return tree
