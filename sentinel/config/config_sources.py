"""Reads settings from their sources, without interpreting them.

Sources by precedence, the highest first: `--set` assignments, explicit arguments, the environment
(`SENTINEL_PORT`, `SENTINEL_SINKS__SLACK__URL`), and one file: that which `SENTINEL_CONFIG` names,
else `sentinel.toml`, else `[tool.sentinel]` of `pyproject.toml`, both in the working directory.
"""

from __future__ import annotations

import logging
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

log = logging.getLogger(__name__)

ConfigTree = dict[str, Any]
ConfigPath = tuple[str, ...]

SETTINGS_FILE, PROJECT_FILE = "sentinel.toml", "pyproject.toml"
_ENV_PREFIX = "SENTINEL_"
_NOT_SETTINGS = frozenset(
    f"{_ENV_PREFIX}{name}"
    for name in (
        *("HOME", "RUNTIME_DIR", "RUN_ID", "OFF", "CONFIG", "LAUNCHER_PID", "PARENT_RANK"),
        "TERMINATION_LOG",
        *("REQUIRE_STACK", "REQUIRE_FRAMEWORKS", "INSTALL_PROGRAMS"),
    )
)
_TYPE_NAMES = {
    "str": "string",
    "int": "integer",
    "bool": "boolean",
    "dict": "table",
}
_LIST_SETTINGS = frozenset(
    {"disable", "tags", "on_critical", "runs", "teams", "recipients", "arguments"}
)
# Kubernetes sets these for a service named "sentinel".
_KUBERNETES_SERVICE_VARIABLE = re.compile(
    r"SENTINEL_(SERVICE_\w+|PORT_\d+_\w+)|SENTINEL_PORT=tcp://.*"
)


class ConfigError(ValueError):
    """An invalid setting: its name, the type given and what is valid. Never its value.

    `path` are the keys that lead to the setting; empty if it is not about one.
    """

    def __init__(self, message: str, path: ConfigPath = ()) -> None:
        super().__init__(message)
        self.path = path


@dataclass
class ConfigSources:
    """The merged settings before validation, `tree`, and the source of each key, `origins`.

    `file` is the settings file that was read, if there is one. Without `read_secrets`, files that
    hold secrets are not opened.
    """

    tree: ConfigTree = field(default_factory=dict)
    origins: dict[ConfigPath, str] = field(default_factory=dict)
    file: Path | None = None
    read_secrets: bool = True

    def overlay(self, layer: Mapping[str, Any], origin: str) -> None:
        """Merge `layer` into the tree, table by table; its values replace those in the tree."""
        _overlay(self, self.tree, layer, (), origin)

    def describe(self, key: ConfigPath) -> str:
        """The full name of a setting, and the source of it or of a part of it."""
        origin = next((self.origins[part] for part in self._related(key)), "")
        return f'Setting "{".".join(key)}"' + (f" ({origin})" if origin else "")

    def remove(self, key: ConfigPath) -> bool:
        """Remove a setting, or the table or list entry that it is a part of; whether there is one.

        >>> sources = ConfigSources({"port": 1, "sinks": {"slack": {"urll": "x"}}})
        >>> sources.remove(("sinks", "slack", "urll")), sources.remove(("sinks", "slack", "url"))
        (True, True)
        >>> sources.tree, sources.remove(("host",))
        ({'port': 1, 'sinks': {}}, False)
        """
        table: Any = self.tree
        found: tuple[Any, str] | None = None
        for name in key:
            if isinstance(table, list) and name in table:
                table.remove(name)
                return True
            if not isinstance(table, dict) or name not in table:
                break
            found, table = (table, name), table[name]
        if found is not None:
            del found[0][found[1]]
        return found is not None

    def _related(self, key: ConfigPath) -> Iterator[ConfigPath]:
        above = (key[:n] for n in range(len(key), 0, -1))
        yield from (part for part in above if part in self.origins)
        yield from (part for part in self.origins if part[: len(key)] == key)

    def as_table(self, key: ConfigPath, value: Any) -> ConfigTree:
        """`value` as a table of its own. Raises ConfigError if it is not a table."""
        if isinstance(value, Mapping):
            return dict(value)
        kind = type_name(value)
        message = f"{self.describe(key)}: the {kind} given is wrong: it must be a table."
        raise ConfigError(message, key)


def type_name(value: Any) -> str:
    """The TOML name of the value's type.

    >>> type_name("x"), type_name(1), type_name({}), type_name([])
    ('string', 'integer', 'table', 'list')
    """
    name = type(value).__name__
    return _TYPE_NAMES.get(name, name)


def read_sources(
    overrides: Mapping[str, Any],
    environ: Mapping[str, str],
    cwd: Path,
    assignments: Iterable[str] = (),
    option: str = "--set",
) -> ConfigSources:
    """Read and merge every source. Overrides that are None are ignored.

    `option` is the option that gave the assignments, for messages. Raises ConfigError for a file
    that cannot be read and for a malformed assignment.
    """
    sources = ConfigSources()
    sources.file, content = _read_config_file(environ, cwd)
    sources.overlay(content, str(sources.file))
    for name, value in sorted(environ.items()):
        if _is_setting(name, value):
            sources.overlay(_parse_variable(name, value), name)
    sources.overlay(
        {key: value for key, value in overrides.items() if value is not None}, "argument"
    )
    for assignment in assignments:
        sources.overlay(parse_assignment(assignment, option), option)
    return sources


def working_directory() -> Path:
    """The working directory; a path without files if it was deleted."""
    try:
        return Path.cwd()
    except FileNotFoundError:
        log.warning("The working directory was deleted, with the sentinel.toml it may have had")
        return Path("/proc/self/cwd")


def parse_assignment(text: str, option: str = "--set") -> ConfigTree:
    """The table of one `--set` option. Raises ConfigError unless it is KEY=VALUE.

    The value is TOML; text that is not valid TOML is a string.

    >>> parse_assignment("detectors.kl_blowup.ratio=4")
    {'detectors': {'kl_blowup': {'ratio': 4}}}
    >>> parse_assignment("disable=kl_blowup,loss_spike")
    {'disable': ['kl_blowup', 'loss_spike']}
    """
    name, separator, value = text.partition("=")
    keys = [key.strip() for key in name.split(".")]
    if not separator or not all(keys):
        # Only the beginning: the rest may be a secret.
        given = re.match(r"[\w.]*", text)
        quoted = f' "{given[0]}"' if given and given[0] else ""
        message = f"{option}{quoted}: give KEY=VALUE, such as detectors.kl_blowup.ratio=4."
        raise ConfigError(message)
    return _nest(keys, _parse_value(keys[-1], value.strip()))


def _parse_value(key: str, text: str) -> Any:
    # Most processes have no settings in TOML.
    import tomllib  # noqa: PLC0415

    try:
        parsed = tomllib.loads(f"value = {text}")
    except tomllib.TOMLDecodeError:
        parsed = {}
    # Text with a line break can hold more than one key.
    value = parsed["value"] if len(parsed) == 1 else text
    return _split_list(value) if key in _LIST_SETTINGS and isinstance(value, str) else value


def _overlay(
    sources: ConfigSources,
    tree: ConfigTree,
    layer: Mapping[str, Any],
    parent: ConfigPath,
    origin: str,
) -> None:
    for key, value in layer.items():
        # A secret replaces the file of that secret from a lower layer, and the other way round.
        for alternative in {f"{key}_file", key.removesuffix("_file")} - layer.keys():
            tree.pop(alternative, None)
        if isinstance(value, Mapping):
            existing = tree.get(key)
            tree[key] = dict(existing) if isinstance(existing, Mapping) else {}
            _overlay(sources, tree[key], value, (*parent, key), origin)
        else:
            tree[key] = value
        if not isinstance(value, Mapping) or not value:
            sources.origins[(*parent, key)] = origin


def _read_config_file(environ: Mapping[str, str], cwd: Path) -> tuple[Path | None, ConfigTree]:
    named = environ.get(f"{_ENV_PREFIX}CONFIG")
    if named:
        path = cwd / Path(named).expanduser()
        return path, _read_toml(path)
    for path in (cwd / SETTINGS_FILE, cwd / PROJECT_FILE):
        if path.is_file():
            content = _read_toml(path)
            # Most projects have no settings in theirs.
            return path if content or path.name == SETTINGS_FILE else None, content
    return None, {}


def _read_toml(path: Path) -> ConfigTree:
    # As above.
    import tomllib  # noqa: PLC0415

    try:
        content: ConfigTree = tomllib.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        # The parser's message may quote the file, which may hold a secret.
        position = re.search(r"at (line \d+, column \d+|end of document)", str(error))
        reason = (
            (error.strerror or "error")
            if isinstance(error, OSError)
            else f"not valid TOML {position[0]}"
            if position
            else "not UTF-8 text"
        )
        raise ConfigError(f"The settings file {path} cannot be read ({reason}).") from None
    if path.name == PROJECT_FILE:
        tools = ConfigSources().as_table(("tool",), content.get("tool", {}))
        content = ConfigSources().as_table(("tool", "sentinel"), tools.get("sentinel", {}))
    return content


def _is_setting(name: str, value: str) -> bool:
    is_sentinel_name = name.startswith(_ENV_PREFIX) and name not in _NOT_SETTINGS and value != ""
    return is_sentinel_name and not (
        _KUBERNETES_SERVICE_VARIABLE.fullmatch(name)
        or _KUBERNETES_SERVICE_VARIABLE.fullmatch(f"{name}={value}")
    )


def _parse_variable(name: str, value: str) -> ConfigTree:
    keys = name.removeprefix(_ENV_PREFIX).lower().split("__")
    return _nest(keys, _split_list(value) if keys[-1] in _LIST_SETTINGS else value)


def _split_list(text: str) -> list[str]:
    return [item.strip() for item in text.split(",") if item.strip()]


def _nest(keys: Iterable[str], value: Any) -> ConfigTree:
    *above, last = keys
    tree: ConfigTree = {last: value}
    for key in reversed(above):
        tree = {key: tree}
    return tree
