"""Filter, order and pages of the list of runs."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from math import inf
from time import monotonic
from typing import Any

from sentinel.model.json_safe import parse_object
from sentinel.store.run_summary import ACTIVE_STATES, HEALTH_ORDER, READING, UNFINISHED, RunEntry

DEFAULT_ROWS, MAX_ROWS = 100, 500
DEFAULT_SORT = "-last_written"
MAX_GROUPS = 1000
GROUPS = ("project", "tag", "host", "state", "health", "framework", "model")


def shown_state(entry: RunEntry) -> str:
    """The state; `unfinished` if the run should be active and has no agent."""
    return UNFINISHED if entry.state in ACTIVE_STATES and not entry.is_live else entry.state


_KEYS: dict[str, Callable[[RunEntry], Any]] = {
    "run": lambda entry: entry.run,
    "state": shown_state,
    # The worst last, as the newest and the furthest.
    "health": lambda entry: (
        -HEALTH_ORDER.index(entry.health) if entry.health in HEALTH_ORDER else -len(HEALTH_ORDER)
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
    one of `SORT_KEYS`, with `-` for descending; `group` one of `GROUPS`, or empty.
    """

    filter: str = ""
    sort: str = DEFAULT_SORT
    group: str = ""
    offset: int = 0
    limit: int = DEFAULT_ROWS


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


def query_runs(entries: Iterable[RunEntry], query: RunQuery, now: float) -> dict[str, Any]:
    """The page of the list.

    Keys: total and matched (numbers of runs), groups (name and count of each), states (number of
    matched runs by state) and runs (summaries with is_live, age in seconds, and group). With
    `group` tag, a run is in the group of each of its tags.
    """
    every = list(entries)
    words = query.filter.lower().split()
    matched = [each for each in every if all(_matches(each, word) for word in words)]
    key = _KEYS[query.sort.removeprefix("-")]
    matched.sort(key=lambda each: each.run)
    matched.sort(key=key, reverse=query.sort.startswith("-"))
    rows = [(group, each) for each in matched for group in _groups(each, query.group)]
    groups = Counter(group for group, _ in rows) if query.group else Counter()
    if query.group:
        # Stable: within a group the order stays. Runs without one come last.
        rows.sort(key=lambda row: (not row[0], row[0]))
    page = rows[query.offset : query.offset + query.limit]
    return {
        "total": len(every),
        "matched": len(matched),
        "rows": len(rows),
        "states": dict(Counter(shown_state(each) for each in matched)),
        "groups": [
            {"name": name, "count": count}
            for name, count in sorted(groups.items(), key=lambda item: (not item[0], item[0]))
        ][:MAX_GROUPS],
        "runs": [_row(entry, group, now) for group, entry in page],
    }


def _row(entry: RunEntry, group: str, now: float) -> dict[str, Any]:
    return parse_object(entry.body.decode(errors="replace")) | {
        "run": entry.run,
        "state": shown_state(entry),
        "health": entry.health,
        "is_live": entry.is_live,
        # While nothing else is known, the time is that of a file, which a copy changes.
        "age": None if entry.state == READING else max(now - entry.last_written, 0.0),
        "group": group,
    }


def _groups(entry: RunEntry, group: str) -> tuple[str, ...]:
    if group == "tag":
        return entry.tags or ("",)
    if group == "state":
        return (shown_state(entry),)
    return (str(getattr(entry, group)) if group else "",)


def _matches(entry: RunEntry, word: str) -> bool:
    key, colon, text = word.partition(":")
    if colon and key == "tag":
        return any(text in tag.lower() for tag in entry.tags)
    if colon and key == "state":
        return text in shown_state(entry)
    if colon and key in {*GROUPS, "run"}:
        return text in str(getattr(entry, key)).lower()
    return word in entry.search
