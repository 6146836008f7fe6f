"""Rows: what a training log says, row by row, told as records of the whole run.

A row is a dict of anything. Nested dicts are joined by "/", numbers may be written as strings, and
what is not a number is left out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from math import isfinite, nan
from typing import Any

from sentinel.record import WHOLE_RUN, Event, Record
from sentinel.signals import SIGNALS, canonical
from sentinel.sources.counters import Counters

DEEPEST = 8
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

STEP_OF_STEPS = "global_step/max_steps"
"""A key of ms-swift, whose value is such as "5/2400"."""

LIMIT_KEYS = ("max_steps", "total_steps")
TIME_KEYS = ("time", "timestamp", "_timestamp")
WRAPPERS = frozenset({"data", "metrics", "values", "scalars", "logs"})
"""Dicts whose own name says nothing about what is in them."""

HELD_OUT = re.compile(r"(eval|val|valid|validation|test)[/_ -]", re.IGNORECASE)
ABOUT_ANY_ROW = frozenset({"epoch", "training/epoch", *STEP_KEYS, *LIMIT_KEYS, *TIME_KEYS})
EVENTS = frozenset(event.value for event in Event)
LARGEST_STEP = 2**53
YEAR_2001 = 1e9
"""Seconds since the epoch; a smaller time is a duration."""


@dataclass
class Rows:
    """Turns the rows of one run into records, one after the other.

    Of the names of one signal, the best in the first row that has any keeps it for the run: a
    step's loss and an epoch's are two series, and judged as one they would jump. `facts` of a
    record hold the logged name of every signal that goes by another. `null_is_nan` says that the
    writer puts null for NaN. `rows` counts records; `step` is the last one.
    """

    run: str
    null_is_nan: bool = False
    names: dict[str, str] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    rows: int = 0
    step: int | None = None

    def record(self, row: Mapping[str, Any]) -> Record | None:
        """The row's record; None if it has no number."""
        values = dict(_numbers(row, self.null_is_nan))
        if not values and not row.get("event"):
            return None
        self.rows += 1
        step = _step(values)
        if step is not None:
            self.step = step
        event = _event(row, values)
        named = self._named(values)
        if event is Event.STEP and step is not None:
            declared = named.pop("global_step", float(step))
            if self.counters.follows(frozenset(named), declared):
                named["global_step"] = declared
        return Record(
            run=self.run,
            rank=WHOLE_RUN,
            step=self.rows if self.step is None else self.step,
            time=_time(values, self.rows),
            event=event,
            values=named,
            facts=self.facts,
        )

    def _named(self, values: Mapping[str, float]) -> dict[str, float]:
        fresh = [key for key in values if key not in self.names]
        for key in sorted(fresh, key=_rank):
            self._claim(key)
        return {self.names[key]: value for key, value in values.items()}

    def _claim(self, key: str) -> None:
        name = _ours(key)
        owner = self.owners.get(name)
        self.names[key] = name if owner is None or name == key else key
        if self.names[key] != name or name not in SIGNALS:
            return
        if owner is not None:
            # Late, but it bears the signal's very name.
            self.names[owner] = owner
        self.owners[name] = key
        self.facts = {n: k for n, k in self.owners.items() if n != k}


def _ours(key: str) -> str:
    """The catalogue's name for a key, its own where there is none.

    Spaces are as good as underscores, and Lightning adds "_step" to a step's value.
    """
    if canonical(key) in SIGNALS:
        return canonical(key)
    plain = canonical(key.strip().lower().replace(" ", "_").removesuffix("_step"))
    return plain if plain in SIGNALS else key


def _rank(key: str) -> int:
    """How good a name this is for its signal; 0 is the signal's own."""
    name = _ours(key)
    aliases = SIGNALS[name].aliases if name in SIGNALS else ()
    plain = key.lower().removeprefix("train/")
    if plain == name:
        return 0
    return aliases.index(plain) + 1 if plain in aliases else len(aliases) + 1


def _numbers(
    row: Mapping[str, Any], null_is_nan: bool, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        name = f"{prefix}{key}"
        if isinstance(value, Mapping):
            if depth < DEEPEST:
                inside = prefix if key in WRAPPERS else f"{name}/"
                yield from _numbers(value, null_is_nan, inside, depth + 1)
        elif value is None:
            if null_is_nan and canonical(name) in SIGNALS:
                yield name, nan
        elif key == STEP_OF_STEPS and isinstance(value, str):
            yield from _numbers(dict(zip(key.split("/"), value.split("/"), strict=False)), False)
        elif (number := _number(value)) is not None:
            yield name, number


def _number(value: object) -> float | None:
    if isinstance(value, bool) or not isinstance(value, int | float | str):
        return None
    try:
        return float(value)
    except (ValueError, OverflowError):
        return None


def _step(values: Mapping[str, float]) -> int | None:
    for key in STEP_KEYS:
        step = values.get(key)
        if step is not None and isfinite(step) and abs(step) < LARGEST_STEP:
            return int(step)
    return None


def _time(values: Mapping[str, float], rows: int) -> float:
    """The row's own time; else its number, so that time at least goes on."""
    times = (values.get(key, 0.0) for key in TIME_KEYS)
    return next((time for time in times if isfinite(time) and time > YEAR_2001), float(rows))


def _event(row: Mapping[str, Any], values: Mapping[str, float]) -> Event:
    said = row.get("event")
    if isinstance(said, str) and said in EVENTS:
        return Event(said)
    telling = [key for key in values if key not in ABOUT_ANY_ROW]
    if telling and all(HELD_OUT.match(key) for key in telling):
        return Event.EVAL
    return Event.STEP
