"""The settings of many runs as columns: which of them vary, of which kind, and which vary together.

A value is a number, a truth value, a text, or None where a run has no such setting. Texts that
state a number or a truth value count as these, since tables and trackers store them so.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import inf, isfinite, log
from typing import Any, Literal

from sentinel.signals.run_metadata import NAME_KEY, PATCH_KEY_PREFIX
from sentinel.signals.tracker_runs import TRACKER_RUN_KEYS
from sentinel.transport.slurm_job import SLURM_KEY_PREFIX

MAX_EXACT_INTEGER = 2.0**53
"""Whole numbers below it are exact as float64."""

Value = float | bool | str | None
Kind = Literal["number", "flag", "choice"]

RUN_SPECIFIC = frozenset(
    {
        "pid", "run", "host", "hosts", "attempt", "local_rank", "rank", NAME_KEY,
        f"{SLURM_KEY_PREFIX}job_id", f"{SLURM_KEY_PREFIX}array_task_id", *TRACKER_RUN_KEYS,
    }
)  # fmt: skip
"""Metadata that are no settings: two runs always differ in them, or the heading has them."""
MAX_VALUE_CHARS = 100
MAX_DEPTH = 8
MAX_LEVELS = 12
"""Values of a choice that are distinguished; the rarer ones count as one."""
OTHER, NOT_SET = "other", "not set"
LOG_RATIO = 50.0
"""Positive numbers are on a log scale only if the largest is so many times the smallest."""

_SEED = re.compile(r"(.*[^a-z])?seed", re.IGNORECASE)
_NO_SETTINGS_PREFIXES = ("sentinel/", "monitor/", PATCH_KEY_PREFIX, SLURM_KEY_PREFIX)
_TRUTH_VALUES = {"true": True, "false": False}
_NO_VALUES = frozenset({"", "none", "null", "nan"})
_IDENTIFIER_LEVELS = 5
_MIN_LOG_NUMBERS = 3


@dataclass(frozen=True, slots=True)
class Setting:
    """One setting that varies. `values` has one value per run, in the order of the runs.

    `levels` are the values of a choice, the most frequent first, without those that are not set.
    `same_as` names settings that change in exactly the same runs.
    """

    name: str
    kind: Kind
    values: Sequence[Value]
    levels: Sequence[str] = ()
    same_as: Sequence[str] = ()

    @property
    def has_missing(self) -> bool:
        """Whether a run lacks it."""
        return any(value is None for value in self.values)

    @property
    def is_log(self) -> bool:
        """Whether its numbers are shown on a log scale, as learning rates are.

        They are positive, span a wide range, and their median is nearer the middle on that scale.
        """
        numbers = sorted({value for value in self.values if type(value) is float})
        if len(numbers) < _MIN_LOG_NUMBERS or self.kind != "number" or numbers[0] <= 0:
            return False
        first, middle, last = numbers[0], numbers[len(numbers) // 2], numbers[-1]
        share = (log(middle) - log(first)) / (log(last) - log(first))
        linear_share = (middle - first) / (last - first)
        return last >= LOG_RATIO * first and abs(share - 0.5) < abs(linear_share - 0.5)


@dataclass(frozen=True, slots=True)
class SettingTable:
    """The settings of all runs, by what they can explain of an outcome.

    `varying` are examined. `constant` are equal in all runs, `identifiers` are texts that differ in
    nearly each, `seeds` change nothing but chance. `group` numbers the runs: those with equal
    settings, apart from the seed, have the same number.
    """

    varying: Sequence[Setting]
    constant: Mapping[str, Value]
    identifiers: Sequence[str]
    seeds: Sequence[str]
    group: Sequence[int]


def flat_settings(config: Mapping[str, Any]) -> dict[str, Value]:
    """The settings of a configuration with nested ones as `outer.inner`; those of sentinel are out.

    >>> flat_settings({"lr": "3e-4", "lora": {"r": 8, "alpha": None}, "fp16": "false", "pid": 7})
    {'lr': 0.0003, 'lora.r': 8.0, 'lora.alpha': None, 'fp16': False}
    """
    return {
        name: to_value(value)
        for name, value in _items(config, MAX_DEPTH)
        if name not in RUN_SPECIFIC and not name.startswith(_NO_SETTINGS_PREFIXES)
    }


def is_seed(name: str) -> bool:
    """Whether the setting changes nothing but chance.

    >>> [is_seed(name) for name in ("seed", "data_seed", "--seed", "seed_data")]
    [True, True, True, False]
    """
    return _SEED.fullmatch(name) is not None


def to_value(value: Any) -> Value:
    """The value of a setting: a number that is not finite is None, and other objects are texts."""
    if value is None or isinstance(value, bool):
        return value
    if isinstance(value, str):
        value = value.strip()
        text = value.lower()
        if text in _NO_VALUES or text in _TRUTH_VALUES:
            return _TRUTH_VALUES.get(text)
    elif isinstance(value, list | tuple):
        value = ", ".join(map(str, value))
    try:
        # Python alone reads 1_000 as a number.
        number = float("text" if "_" in str(value) else value)
    except (TypeError, ValueError, OverflowError):
        return str(value)[:MAX_VALUE_CHARS]
    return number if isfinite(number) else None


def _items(config: Mapping[str, Any], depth: int) -> Iterable[tuple[str, Any]]:
    for name, value in config.items():
        if isinstance(value, Mapping):
            if depth:
                yield from ((f"{name}.{inner}", each) for inner, each in _items(value, depth - 1))
        else:
            yield str(name), value


def tabulate(settings: Sequence[Mapping[str, Value]]) -> SettingTable:
    """The settings of the runs, each as `flat_settings` returns them."""
    names = dict.fromkeys(name for each in settings for name in each)
    varying: list[Setting] = []
    constant: dict[str, Value] = {}
    identifiers: list[str] = []
    seeds: list[str] = []
    for name in names:
        values = [each.get(name) for each in settings]
        if len(set(map(_key, values))) == 1:
            constant[name] = values[0]
        elif is_seed(name):
            seeds.append(name)
        else:
            setting = _setting(name, values)
            if _is_identifier(setting):
                identifiers.append(name)
            else:
                varying.append(setting)
    group = _codes(zip(*(map(_key, each.values) for each in varying), strict=True))
    return SettingTable(
        _merged(varying), constant, identifiers, seeds, group or [0] * len(settings)
    )


def _setting(name: str, values: Sequence[Value]) -> Setting:
    present = [value for value in values if value is not None]
    if all(isinstance(value, bool) for value in present):
        return Setting(name, "flag", values)
    if all(isinstance(value, float) for value in present):
        return Setting(name, "number", values)
    texts = [None if value is None else value_text(value) for value in values]
    counts = Counter(text for text in texts if text is not None)
    levels = sorted(counts, key=lambda text: (-counts[text], text))
    return Setting(name, "choice", texts, levels)


def value_text(value: Value) -> str:
    """A value as people write it.

    >>> [value_text(value) for value in (0.0003, 8.0, 20240101.0, True, None, "adamw")]
    ['0.0003', '8', '20240101', 'true', 'not set', 'adamw']
    """
    if value is None:
        return NOT_SET
    if isinstance(value, bool):
        return str(value).lower()
    if not isinstance(value, float):
        return value
    is_whole = value.is_integer() and abs(value) < MAX_EXACT_INTEGER
    return str(int(value)) if is_whole else f"{value:.6g}"


def _key(value: Value) -> tuple[str, Value]:
    """The value as a key: True is not 1."""
    return type(value).__name__, value


def _is_identifier(setting: Setting) -> bool:
    count = len(setting.levels)
    return count > _IDENTIFIER_LEVELS and count > len(setting.values) / 2


def _codes(rows: Iterable[Any]) -> list[int]:
    """A number for each row; equal rows have the same one."""
    numbers: dict[Any, int] = {}
    return [numbers.setdefault(row, len(numbers)) for row in rows]


def _merged(settings: Sequence[Setting]) -> list[Setting]:
    """The settings, without those that cannot be distinguished from an earlier one."""
    places: dict[tuple[int, ...], int] = {}
    merged: list[Setting] = []
    for setting in settings:
        keys = [*_patterns(setting)]
        place = next((places[key] for key in keys if key in places), len(merged))
        if place == len(merged):
            merged.append(setting)
            places |= dict.fromkeys(keys, place)
        else:
            known = merged[place]
            merged[place] = replace(known, same_as=(*known.same_as, setting.name))
    return merged


def _patterns(setting: Setting) -> Iterator[tuple[int, ...]]:
    """What two settings share that no tree can distinguish: their order, or which runs are equal.

    Numbers that differ in nearly every run share the latter with any other such number.
    """
    if setting.kind == "number":
        for sign in (1, -1):
            numbers = [
                sign * value if isinstance(value, float) else inf for value in setting.values
            ]
            places = {value: place for place, value in enumerate(sorted(set(numbers)))}
            yield tuple(places[value] for value in numbers)
    codes = _codes(map(_key, setting.values))
    if max(codes) + 1 <= len(codes) / 2:
        yield (-1, *codes)
