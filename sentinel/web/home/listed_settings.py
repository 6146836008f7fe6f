"""The settings of listed runs, read from their databases once a list shows any of them."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from threading import Event as Flag
from typing import Any

from sentinel.store.run_settings import Value, flat_settings, value_text
from sentinel.store.run_summary import READING, RunEntry

log = logging.getLogger(__name__)

MAX_EXAMPLES = 3
"""Values that stand for those of a setting."""

_NOTHING: Mapping[str, Value] = {}


class ListedSettings:
    """The settings of each run by name, as `flat_settings` returns them.

    `find_database` returns the database of a run, None if it has none. One thread calls `refresh`
    and `read_one`, since a disk may hang; all else is for any number of threads.
    """

    def __init__(self, find_database: Callable[[RunEntry], Path | None]) -> None:
        self._find_database = find_database
        self._known: dict[str, tuple[object, Mapping[str, Value]]] = {}
        self._missing: list[RunEntry] = []
        self._is_wanted = False
        self._are_read = Flag()

    def want(self) -> bool:
        """Read the settings from now on; whether this is the first time that they are wanted."""
        is_first, self._is_wanted = not self._is_wanted, True
        return is_first

    def wait(self, seconds: float) -> None:
        """Wait until the settings of every run are read, for at most so long."""
        self._are_read.wait(seconds)

    @property
    def missing_count(self) -> int:
        """Runs whose settings are not read yet."""
        return len(self._missing)

    def of(self, entry: RunEntry) -> Mapping[str, Value]:
        """The settings of a run, as far as they are read."""
        return self._known.get(entry.run, (None, _NOTHING))[1]

    def refresh(self, entries: Iterable[RunEntry]) -> None:
        """Find out which runs are to be read: those that are new or have changed."""
        if not self._is_wanted:
            return
        current = {entry.run: entry for entry in entries if entry.state != READING}
        for run in self._known.keys() - current.keys():
            del self._known[run]
        self._missing = [
            entry
            for entry in sorted(current.values(), key=lambda each: each.last_written)
            if entry.run not in self._known or self._known[entry.run][0] != _mark(entry)
        ]
        if not self._missing:
            self._are_read.set()

    def read_one(self) -> bool:
        """Read the settings of the newest run that lacks them; whether there was one."""
        if not self._missing:
            return False
        entry = self._missing[-1]
        settings = _NOTHING
        try:
            database = self._find_database(entry)
            if database is not None:
                # `sentinel status` lists runs without their settings.
                from sentinel.store.run_reader import RunReader  # noqa: PLC0415

                settings = flat_settings(RunReader(database).metadata())
        except Exception as error:
            log.debug("The settings of %s cannot be read: %s", entry.run, error)
        self._known[entry.run] = _mark(entry), settings
        self._missing.pop()
        if not self._missing:
            self._are_read.set()
        return True


def describe_settings(settings: Iterable[Mapping[str, Value]]) -> list[dict[str, Any]]:
    """The settings that any of these runs has, those first in which the runs differ.

    Each has name, runs (how many have it), values (how many different ones there are) and text
    (the lowest and the highest number, else the most frequent values).
    """
    found: dict[str, dict[Value, int]] = {}
    for each in settings:
        for name, value in each.items():
            if value is not None:
                counts = found.setdefault(name, {})
                counts[value] = counts.get(value, 0) + 1
    described = [
        {
            "name": name,
            "runs": sum(counts.values()),
            "values": len(counts),
            "text": _values_text(counts),
        }
        for name, counts in found.items()
    ]
    return sorted(described, key=lambda each: (each["values"] < 2, str(each["name"]).lower()))


def _values_text(counts: Mapping[Value, int]) -> str:
    numbers = [value for value in counts if isinstance(value, float)]
    if len(numbers) == len(counts) > MAX_EXAMPLES:
        return f"{value_text(min(numbers))} to {value_text(max(numbers))}"
    frequent = sorted(counts, key=lambda value: -counts[value])[:MAX_EXAMPLES]
    more = ", …" if len(counts) > MAX_EXAMPLES else ""
    return ", ".join(map(value_text, sorted(frequent, key=setting_order))) + more


def setting_order(value: Value) -> tuple[int, float, str]:
    """Sort key of values: numbers by their size, and then texts."""
    if isinstance(value, float):
        return 0, value, ""
    return 1, 0.0, value_text(value).lower()


def _mark(entry: RunEntry) -> object:
    return entry.directory, entry.stamp
