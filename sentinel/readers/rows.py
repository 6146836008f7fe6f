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
from sentinel.readers.log_config import texts
from sentinel.readers.masked_nan import Laundry
from sentinel.readers.step_counter import Counters
from sentinel.signals.catalogue import SIGNALS, canonical, held_out, plain
from sentinel.signals.framework_config import configured
from sentinel.signals.key_map import Dialect, Word
from sentinel.signals.kl import SIGNALS_OF_KL, fact_of, kl_kind
from sentinel.signals.run_metadata import About

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
CONFIGURING = (Event.START.value, Event.FACTS.value)
"""Events whose rows may say how the run is configured, in texts as well."""

LARGEST_STEP = 2**53
YEAR_2001 = 1e9
"""Seconds since the epoch; a smaller time is a duration."""


MOST_FORMS = 1024


@dataclass(slots=True)
class Form:
    """What rows with the same keys have in common: what their keys mean, and whether of an EVAL.

    `plain` says that every value is in our unit as it stands.
    """

    words: list[Word]
    names: list[str]
    plain: bool
    held_out: bool


@dataclass
class Rows:
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
    about: About = field(default_factory=About)
    words: dict[str, Word] = field(default_factory=dict)
    owners: dict[str, str] = field(default_factory=dict)
    facts: dict[str, str] = field(default_factory=dict)
    counters: Counters = field(default_factory=Counters)
    laundry: Laundry = field(default_factory=Laundry)
    forms: dict[tuple[str, ...], Form] = field(default_factory=dict)
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
        said = texts(configured(row)) if row.get("event") in CONFIGURING else {}
        if said:
            self.about.learn(said)
        form = self._form(tuple(values))
        event = _event(row, form)
        named = self._named(form, values)
        if event is Event.EVAL:
            named = {held_out(name): value for name, value in named.items()}
        else:
            named = self.laundry.undone(named)
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
            facts={**self.facts, **said} if said else self.facts,
        )

    def _form(self, keys: tuple[str, ...]) -> Form:
        form = self.forms.get(keys)
        if form is None:
            fresh = [key for key in keys if key not in self.words]
            if fresh:
                self._learn(fresh)
            form = _formed(keys, [self.words[key] for key in keys])
            if len(self.forms) < MOST_FORMS:
                self.forms[keys] = form
        return form

    def _named(self, form: Form, values: Mapping[str, float]) -> dict[str, float]:
        if form.plain:
            return dict(zip(form.names, values.values(), strict=True))
        named = {}
        for word, value in zip(form.words, values.values(), strict=True):
            measured = word.measured(value)
            if measured is not None:
                named[word.name] = measured
        return named

    def _learn(self, fresh: list[str]) -> None:
        self.about.hear(fresh)
        spoken = self.about.dialect
        # A late name may take a signal over from the one that had it.
        self.forms.clear()
        for key in sorted(fresh, key=lambda key: _rank(key, spoken)):
            self._claim(key, spoken.word(key))
        self.facts = {name: key for name, key in self.owners.items() if name != key}
        kinds = {
            n: kl_kind(self.owners[n], self.about.facts) for n in SIGNALS_OF_KL if n in self.owners
        }
        self.facts |= {fact_of(n): kind.told() for n, kind in kinds.items() if kind and kind.known}

    def _claim(self, key: str, word: Word) -> None:
        owner = self.owners.get(word.name)
        if owner is not None and key != word.name:
            self.words[key] = Word(key)
            return
        if owner is not None:
            # Late, but it bears the signal's very name.
            self.words[owner] = Word(owner)
        self.words[key] = word
        self.owners[word.name] = key


def _rank(key: str, spoken: Dialect) -> int:
    """How good a name this is for its signal; 0 is the signal's own."""
    name = spoken.word(key).name
    aliases = SIGNALS[name].aliases if name in SIGNALS else ()
    bare = plain(key)
    if bare == name:
        return 0
    return aliases.index(bare) + 1 if bare in aliases else len(aliases) + 1


def _numbers(
    row: Mapping[str, Any], null_is_nan: bool, prefix: str = "", depth: int = 0
) -> Iterator[tuple[str, float]]:
    for key, value in row.items():
        name = f"{prefix}{key}" if prefix else str(key)
        if type(value) is float:
            yield name, value
        elif isinstance(value, Mapping):
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


def _event(row: Mapping[str, Any], form: Form) -> Event:
    said = row.get("event")
    if isinstance(said, str) and said in EVENTS:
        return Event(said)
    return Event.EVAL if form.held_out else Event.STEP


def _formed(keys: tuple[str, ...], words: list[Word]) -> Form:
    telling = [key for key in keys if key not in ABOUT_ANY_ROW]
    return Form(
        words,
        [word.name for word in words],
        all(word.factor == 1.0 and not word.zero_is_none for word in words),
        bool(telling) and all(HELD_OUT.match(key) for key in telling),
    )
