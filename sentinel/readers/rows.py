"""Rows: what a training log says, row by row, told as records of the whole run.

A row is a dict of anything. Nested dicts are joined by "/", numbers may be written as strings, and
what is not a number is left out: TRL writes null for a reward function that judged nobody.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.readers.log_config import text_metadata
from sentinel.readers.masked_nan import NanRestorer
from sentinel.readers.step_filter import StepFilter
from sentinel.signals.catalogue import SIGNALS, canonical_name, eval_name, normalize_key
from sentinel.signals.framework_config import parse_framework_config
from sentinel.signals.key_map import KeyMap, KeyMapping
from sentinel.signals.kl import KL_SIGNALS, kl_kind_attributes
from sentinel.signals.run_metadata import RunMetadata

MAX_DEPTH = 8
"""Dicts within dicts that are followed."""

STEP_KEYS = (
    "step",
    "global_step",
    "train/global_step",
    "training/global_step",
    "trainer/global_step",
    "current_steps",
    "iteration",
    "iter",
    "_step",
    "total_timesteps",
    "time/total_timesteps",
)
"""Where a row says its step, best first."""

STEP_FRACTION_KEY = "global_step/max_steps"
"""A key of ms-swift, whose value is such as "5/2400"."""

MAX_STEPS_KEYS = ("max_steps", "total_steps")
TIME_KEYS = ("time", "timestamp", "_timestamp")
WRAPPER_KEYS = frozenset({"data", "metrics", "values", "scalars", "logs"})
"""Dicts whose own name says nothing about what is in them."""

HELD_OUT_PREFIX = re.compile(r"(eval|val|valid|validation|test)[/_ -]", re.IGNORECASE)
NEUTRAL_KEYS = frozenset({"epoch", "training/epoch", *STEP_KEYS, *MAX_STEPS_KEYS, *TIME_KEYS})
EVENT_NAMES = frozenset(event.value for event in Event)
CONFIG_EVENTS = (Event.START.value, Event.METADATA.value)
"""Events whose rows may say how the run is configured, in texts as well."""

MAX_STEP = 2**53
YEAR_2001 = 1e9
"""Seconds since the epoch; a smaller time is a duration."""


MAX_LAYOUTS = 1024


@dataclass(slots=True)
class RowLayout:
    """What rows with the same keys have in common: what their keys mean, and whether of an EVAL.

    `plain` says that every value is in our unit as it stands.
    """

    key_mappings: list[KeyMapping]
    signal_names: list[str]
    is_unscaled: bool
    is_held_out: bool


@dataclass
class RowConverter:
    """Turns the rows of one run into records, one after the other.

    Of the names of one signal, the best in the first row that has any keeps it for the run: a
    step's loss and an epoch's are two series, and judged as one they would jump. `facts` of a
    record hold the logged name of every signal that goes by another, and the kind of every KL.
    `null_is_nan` says that the writer puts null for NaN. `about` is what is known of the run, such
    as its framework; what is not, the keys may give away. `rows` counts records; `step` is the last
    one.
    """

    run: str
    null_is_nan: bool = False
    metadata: RunMetadata = field(default_factory=RunMetadata)
    key_mappings: dict[str, KeyMapping] = field(default_factory=dict)
    key_by_signal: dict[str, str] = field(default_factory=dict)
    attributes: dict[str, str] = field(default_factory=dict)
    step_filter: StepFilter = field(default_factory=StepFilter)
    nan_restorer: NanRestorer = field(default_factory=NanRestorer)
    layouts: dict[tuple[str, ...], RowLayout] = field(default_factory=dict)
    record_count: int = 0
    last_step: int | None = None

    def to_record(self, row: Mapping[str, Any]) -> Record | None:
        """The row's record; None if it has no number."""
        values = dict(_flatten_numbers(row, self.null_is_nan))
        if not values and not row.get("event"):
            return None
        self.record_count += 1
        step = _row_step(values)
        if step is not None:
            self.last_step = step
        said = (
            text_metadata(parse_framework_config(row)) if row.get("event") in CONFIG_EVENTS else {}
        )
        if said:
            self.metadata.update_metadata(said)
        form = self._layout(tuple(values))
        event = _row_event(row, form)
        named = self._signal_values(form, values)
        if event is Event.EVAL:
            named = {eval_name(name): value for name, value in named.items()}
        else:
            named = self.nan_restorer.restore(named)
        if event is Event.STEP and step is not None:
            declared = named.pop("global_step", float(step))
            if self.step_filter.accepts(frozenset(named), declared):
                named["global_step"] = declared
        return Record(
            run=self.run,
            rank=WHOLE_RUN,
            step=self.record_count if self.last_step is None else self.last_step,
            time=_row_time(values, self.record_count),
            event=event,
            values=named,
            attributes={**self.attributes, **said} if said else self.attributes,
        )

    def _layout(self, keys: tuple[str, ...]) -> RowLayout:
        form = self.layouts.get(keys)
        if form is None:
            fresh = [key for key in keys if key not in self.key_mappings]
            if fresh:
                self._map_keys(fresh)
            form = _build_layout(keys, [self.key_mappings[key] for key in keys])
            if len(self.layouts) < MAX_LAYOUTS:
                self.layouts[keys] = form
        return form

    def _signal_values(self, form: RowLayout, values: Mapping[str, float]) -> dict[str, float]:
        if form.is_unscaled:
            return dict(zip(form.signal_names, values.values(), strict=True))
        named = {}
        for word, value in zip(form.key_mappings, values.values(), strict=True):
            measured = word.convert(value)
            if measured is not None:
                named[word.name] = measured
        return named

    def _map_keys(self, new_keys: list[str]) -> None:
        self.metadata.detect_framework(new_keys)
        spoken = self.metadata.key_map
        # A late name may take a signal over from the one that had it.
        self.layouts.clear()
        for key in sorted(new_keys, key=lambda key: _alias_rank(key, spoken)):
            self._assign_signal(key, spoken.lookup(key))
        self.attributes = {name: key for name, key in self.key_by_signal.items() if name != key}
        kl_keys = {n: self.key_by_signal[n] for n in KL_SIGNALS if n in self.key_by_signal}
        self.attributes |= kl_kind_attributes(kl_keys, self.metadata.metadata)

    def _assign_signal(self, key: str, mapping: KeyMapping) -> None:
        owner = self.key_by_signal.get(mapping.name)
        if owner is not None and key != mapping.name:
            self.key_mappings[key] = KeyMapping(key)
            return
        if owner is not None:
            # Late, but it bears the signal's very name.
            self.key_mappings[owner] = KeyMapping(owner)
        self.key_mappings[key] = mapping
        self.key_by_signal[mapping.name] = key


def _alias_rank(key: str, key_map: KeyMap) -> int:
    """How good a name this is for its signal; 0 is the signal's own."""
    name = key_map.lookup(key).name
    aliases = SIGNALS[name].aliases if name in SIGNALS else ()
    bare = normalize_key(key)
    if bare == name:
        return 0
    return aliases.index(bare) + 1 if bare in aliases else len(aliases) + 1


def _flatten_numbers(
    row: Mapping[str, Any], null_is_nan: bool, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        name = f"{prefix}{key}" if prefix else str(key)
        if type(value) is float:
            yield name, value
        elif isinstance(value, Mapping):
            if depth < MAX_DEPTH:
                inside = prefix if key in WRAPPER_KEYS else f"{name}/"
                yield from _flatten_numbers(value, null_is_nan, inside, depth + 1)
        elif value is None:
            if null_is_nan and canonical_name(name) in SIGNALS:
                yield name, nan
        elif key == STEP_FRACTION_KEY and isinstance(value, str):
            yield from _flatten_numbers(
                dict(zip(key.split("/"), value.split("/"), strict=False)), False
            )
        elif (number := _parse_number(value)) is not None:
            yield name, number


def _parse_number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _row_step(values: Mapping[str, float]) -> int | None:
    for key in STEP_KEYS:
        step = values.get(key)
        if step is not None and isfinite(step) and abs(step) < MAX_STEP:
            return int(step)
    return None


def _row_time(values: Mapping[str, float], rows: int) -> float:
    """The row's own time; else its number, so that time at least goes on."""
    times = (values.get(key, 0.0) for key in TIME_KEYS)
    return next((time for time in times if isfinite(time) and time > YEAR_2001), float(rows))


def _row_event(row: Mapping[str, Any], layout: RowLayout) -> Event:
    said = row.get("event")
    if isinstance(said, str) and said in EVENT_NAMES:
        return Event(said)
    return Event.EVAL if layout.is_held_out else Event.STEP


def _build_layout(keys: tuple[str, ...], key_mappings: list[KeyMapping]) -> RowLayout:
    telling = [key for key in keys if key not in NEUTRAL_KEYS]
    return RowLayout(
        key_mappings,
        [word.name for word in key_mappings],
        all(word.factor == 1.0 and not word.zero_is_missing for word in key_mappings),
        bool(telling) and all(HELD_OUT_PREFIX.match(key) for key in telling),
    )
