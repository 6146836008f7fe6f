"""Filter, order and pages of the list of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

from sentinel.model.json_safe import parse_object
from sentinel.model.run_states import ACTIVE_STATES, UNFINISHED
from sentinel.store.run_settings import Value, value_text
from sentinel.store.run_summary import READING, RunEntry
from sentinel.store.verdict import HEALTHY, STATUSES, UNKNOWN
from sentinel.web.home.listed_settings import setting_order

DEFAULT_ROWS, MAX_ROWS = 100, 500
DEFAULT_SORT = "-last_written"
MAX_GROUPS = 1000
MAX_COLUMNS = 20
"""Settings that are shown as columns."""
SETTING = "setting:"
"""Prefix of the name of a setting by which runs are sorted or grouped."""
GROUPS = ("project", "tag", "host", "state", "health", "framework", "model")


def shown_state(entry: RunEntry) -> str:
    """The state; `unfinished` if the run should be active and has no agent."""
    return UNFINISHED if entry.state in ACTIVE_STATES and not entry.is_live else entry.state


def shown_health(entry: RunEntry) -> str:
    """The status of the verdict; `healthy` is not known any more once no agent answers."""
    is_lost = shown_state(entry) != entry.state and not entry.is_log
    return UNKNOWN if is_lost and entry.health == HEALTHY else entry.health


_KEYS: dict[str, Callable[[RunEntry], Any]] = {
    "run": lambda entry: entry.run,
    "state": shown_state,
    # The worst last, as the newest and the furthest.
    "health": lambda entry: (
        -STATUSES.index(shown_health(entry)) if entry.health in STATUSES else -len(STATUSES)
    ),
    "step": lambda entry: entry.step,
    "last_written": lambda entry: entry.last_written,
    "started": lambda entry: entry.started,
    "host": lambda entry: entry.host,
    "framework": lambda entry: entry.framework,
    "model": lambda entry: entry.model,
    "project": lambda entry: entry.project,
}
SORT_KEYS = tuple(_KEYS)


@dataclass(frozen=True, slots=True)
class RunQuery:
    """Which runs are shown, and how.

    `filter` are words that all occur in a run's texts; `key:word` looks only at that key. `sort` is
    one of `SORT_KEYS`, with `-` for descending; `group` one of `GROUPS`, or empty. Both can be a
    setting, such as `setting:learning_rate`. `columns` are names of settings.
    """

    filter: str = ""
    sort: str = DEFAULT_SORT
    group: str = ""
    offset: int = 0
    limit: int = DEFAULT_ROWS
    columns: tuple[str, ...] = ()

    @property
    def has_settings(self) -> bool:
        """Whether the settings of the runs are needed."""
        keys = (self.sort.removeprefix("-"), self.group)
        return bool(self.columns) or any(key.startswith(SETTING) for key in keys)


def no_settings(_: RunEntry) -> Mapping[str, Value]:
    """The settings of a run in a list that shows none."""
    return {}


class ListAge:
    """How old a list is, and since when a reader waits for a new one; for any number of threads."""

    def __init__(self, clock: Callable[[], float] = monotonic) -> None:
        self._clock = clock
        self._read_at = self._due_at = -inf
        self._asked_at: float | None = None

    @property
    def seconds(self) -> float:
        """Since the list was read; infinite before the first time."""
        return self._clock() - self._read_at

    def ask(self) -> None:
        """Note that a reader waits for a list."""
        if self._asked_at is None:
            self._asked_at = self._clock()

    def note_read(self, interval: float = 0.0) -> None:
        """Note that the list was read, and will not be before `interval` seconds have passed."""
        self._asked_at, self._read_at = None, self._clock()
        self._due_at = self._read_at + interval

    def fields(self) -> dict[str, float | None]:
        """Seconds since the list was read (None before), and for which a reader waits in vain."""
        now, asked_at = self._clock(), self._asked_at
        waited = 0.0 if asked_at is None else now - max(asked_at, self._due_at)
        return {
            "read_seconds_ago": None if self._read_at == -inf else round(now - self._read_at, 1),
            "unanswered_seconds": round(max(waited, 0.0), 1),
        }


def query_runs(
    entries: Iterable[RunEntry],
    query: RunQuery,
    now: float,
    settings_of: Callable[[RunEntry], Mapping[str, Value]] = no_settings,
) -> dict[str, Any]:
    """The page of the list.

    Keys: total and matched (numbers of runs), groups (name and count of each), states (number of
    matched runs by state) and runs (summaries with is_live, age in seconds, None if it is not
    known, group, and settings, the values of the columns by name). With `group` tag, a run is in
    the group of each of its tags. A run without the setting that decides is the last one.
    """
    every = list(entries)
    matched = filter_runs(every, query.filter)
    matched.sort(key=lambda each: each.run)
    matched = _sorted(matched, query.sort, settings_of)
    rows = [
        (order, group, each)
        for each in matched
        for order, group in _groups(each, query.group, settings_of)
    ]
    groups = Counter((not group, order, group) for order, group, _ in rows if query.group)
    if query.group:
        # Stable: within a group the order stays. Runs without one come last.
        rows.sort(key=lambda row: (not row[1], row[0]))
    page = rows[query.offset : query.offset + query.limit]
    return {
        "total": len(every),
        "matched": len(matched),
        "rows": len(rows),
        "states": dict(Counter(shown_state(each) for each in matched)),
        "groups": [
            {"name": name, "count": count} for (_, _, name), count in sorted(groups.items())
        ][:MAX_GROUPS],
        "runs": [
            _row(entry, group, now, {name: settings_of(entry).get(name) for name in query.columns})
            for _, group, entry in page
        ],
    }


def filter_runs(entries: Iterable[RunEntry], text: str) -> list[RunEntry]:
    """The runs that every word of the filter selects."""
    words = text.lower().split()
    return [each for each in entries if all(_matches(each, word) for word in words)]


def _sorted(
    entries: list[RunEntry], sort: str, settings_of: Callable[[RunEntry], Mapping[str, Value]]
) -> list[RunEntry]:
    name, is_descending = sort.removeprefix("-"), sort.startswith("-")
    if not name.startswith(SETTING):
        return sorted(entries, key=_KEYS[name], reverse=is_descending)
    name = name.removeprefix(SETTING)
    known = [each for each in entries if settings_of(each).get(name) is not None]
    known.sort(key=lambda each: setting_order(settings_of(each)[name]), reverse=is_descending)
    return known + [each for each in entries if settings_of(each).get(name) is None]


def _row(entry: RunEntry, group: str, now: float, settings: Mapping[str, Value]) -> dict[str, Any]:
    return parse_object(entry.body.decode(errors="replace")) | {
        "run": entry.run,
        "state": shown_state(entry),
        "health": shown_health(entry),
        "is_live": entry.is_live,
        # While nothing else is known, the time is that of a file, which a copy changes.
        "age": None if entry.state == READING else max(now - entry.last_written, 0.0),
        "group": group,
        "settings": settings,
    }


def _groups(
    entry: RunEntry, group: str, settings_of: Callable[[RunEntry], Mapping[str, Value]]
) -> list[tuple[Any, str]]:
    """The groups of a run: their sort keys, and their names, empty without one."""
    if group.startswith(SETTING):
        value = settings_of(entry).get(group.removeprefix(SETTING))
        return [(setting_order(value), "" if value is None else value_text(value))]
    if group == "tag":
        return [(tag, tag) for tag in entry.tags or ("",)]
    name = _text(entry, group) if group else ""
    return [(name, name)]


def _matches(entry: RunEntry, word: str) -> bool:
    key, colon, text = word.partition(":")
    if colon and key == "tag":
        return any(text in tag.lower() for tag in entry.tags)
    if colon and key in {*GROUPS, "run"}:
        return text in _text(entry, key).lower()
    return word in entry.search


def _text(entry: RunEntry, key: str) -> str:
    """What the list shows of one of `GROUPS`, or of the run."""
    shown = {"state": shown_state, "health": shown_health}.get(key)
    return str(getattr(entry, key)) if shown is None else shown(entry)
