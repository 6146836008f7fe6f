"""The settings that a backtest replays runs with: the current ones, and others."""

from __future__ import annotations

import os
import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import product
from math import prod
from pathlib import Path
from typing import Any

from sentinel.config.config_sources import (
    PROJECT_FILE,
    SETTINGS_FILE,
    ConfigError,
    ConfigPath,
    ConfigSources,
    parse_assignment,
    read_sources,
    working_directory,
)
from sentinel.config.settings import Settings, build_detectors, load_replay_settings
from sentinel.config.toml_text import toml_text

CURRENT = "current settings"
MAX_VARIANTS = 100
_REPLAYED = ("detectors", "disable", "keys", "resolve_seconds", "cooldown_seconds")
"""The settings on which it depends what a replay finds."""
_GRID_VALUE = re.compile(r'(?:\[[^\]]*\]|"[^"]*"|[^,\["])+')
"""A value between commas; a list or a text in quotes may contain some."""


@dataclass(frozen=True, slots=True)
class Variant:
    """The current settings with `assignments`, KEY=VALUE, in place of some of them.

    `file` is the settings file in which they belong. `replaced` are the settings that have a value
    there or in a variable, with the source of it, such as "disable (SENTINEL_DISABLE)".
    """

    assignments: tuple[str, ...]
    settings: Settings
    file: Path = Path(SETTINGS_FILE)
    replaced: tuple[str, ...] = ()

    @property
    def name(self) -> str:
        """The assignments as text."""
        return ", ".join(self.assignments) or CURRENT

    @property
    def tree(self) -> dict[str, Any]:
        """The assignments as nested tables."""
        sources = ConfigSources()
        for assignment in self.assignments:
            sources.overlay(parse_assignment(assignment), "")
        return sources.tree

    @property
    def toml(self) -> str:
        """The assignments as a part of the settings file."""
        is_project = self.file.name == PROJECT_FILE
        return toml_text({"tool": {"sentinel": self.tree}} if is_project else self.tree)


def make_variants(
    assignments: Iterable[str] = (),
    grid: Iterable[str] = (),
    environ: Mapping[str, str] | None = None,
) -> list[Variant]:
    """The current settings, those with all `assignments`, and these with each point of the grid.

    `grid` are options KEY=a,b,c; of several, every combination is a point. Of variants that are
    equal for a replay, the first one is returned. Raises ConfigError for an invalid setting, for
    one that does not change what a replay finds, and for more than `MAX_VARIANTS`.
    """
    fixed = tuple(assignments)
    variants = [Variant((), load_replay_settings((), environ))]
    if fixed:
        _reject_without_effect(fixed, "--set")
        variants.append(Variant(fixed, load_replay_settings(fixed, environ)))
    axes = [_grid_axis(each) for each in grid]
    if prod(map(len, axes)) > MAX_VARIANTS:
        count = prod(map(len, axes))
        raise ConfigError(f"--grid: {count} combinations are too many; at most {MAX_VARIANTS}.")
    for point in product(*axes) if axes else ():
        chosen = (*fixed, *point)
        variants.append(Variant(chosen, load_replay_settings(chosen, environ, "--grid")))
    by_identity: dict[object, Variant] = {}
    for variant in variants:
        by_identity.setdefault(_identity(variant.settings), variant)
    return [_with_sources(each, environ) for each in by_identity.values()]


def _with_sources(variant: Variant, environ: Mapping[str, str] | None) -> Variant:
    cwd = working_directory()
    sources = read_sources({}, os.environ if environ is None else environ, cwd)
    replaced = (
        f"{'.'.join(path)} ({sources.origins[path]})"
        for path in _leaves(variant.tree, ())
        if path in sources.origins
    )
    return replace(variant, file=sources.file or cwd / SETTINGS_FILE, replaced=tuple(replaced))


def _leaves(tree: Mapping[str, Any], path: ConfigPath) -> Iterator[ConfigPath]:
    for name, value in tree.items():
        if isinstance(value, Mapping):
            yield from _leaves(value, (*path, name))
        else:
            yield (*path, name)


def _grid_axis(text: str) -> Sequence[str]:
    """An assignment for each value of a grid option."""
    name, separator, values = text.partition("=")
    found = [each.strip() for each in _GRID_VALUE.findall(values) if each.strip()]
    if not separator or not found:
        given = re.match(r"[\w.]*", name)
        quoted = f' "{given[0]}"' if given and given[0] else ""
        message = f"--grid{quoted}: give KEY=a,b,c, such as detectors.kl_blowup.limit=0.5,1,2."
        raise ConfigError(message)
    axis = [f"{name.strip()}={value}" for value in found]
    _reject_without_effect(axis, "--grid")
    return axis


def _reject_without_effect(assignments: Iterable[str], option: str) -> None:
    for assignment in assignments:
        (name,) = parse_assignment(assignment, option)
        if name in Settings.model_fields and name not in _REPLAYED:
            raise ConfigError(
                f'Setting "{name}" ({option}) does not change what a replay finds. '
                f"Those that do: {', '.join(_REPLAYED)}."
            )


def _identity(settings: Settings) -> object:
    detectors = [repr(make()) for make in build_detectors(settings).values()]
    return repr([detectors, settings.keys, settings.resolve_seconds, settings.cooldown_seconds])
