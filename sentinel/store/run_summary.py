"""A small file per run with what a list of runs shows, and the index of all of them.

The agent writes it while it serves the run. For a run without one it is made from the database,
once.
"""

from __future__ import annotations

import json
import logging
import os
import time
from collections.abc import Callable, Collection, Mapping
from contextlib import suppress
from dataclasses import dataclass, field
from math import isfinite
from pathlib import Path
from sys import intern
from typing import TYPE_CHECKING, Any

from sentinel.model.clean_text import clean
from sentinel.model.json_safe import JsonObject, parse_object
from sentinel.model.run_states import ACTIVE_STATES
from sentinel.store.notes import NOTE_NAME, Note, read_note
from sentinel.store.verdict import problems_of, status_of
from sentinel.transport.paths import (
    DATABASE_NAME,
    is_agent_running,
    list_current_run_dirs,
    list_shared_run_ids,
    shared_run_dir,
)
from sentinel.transport.replaced_file import replace_file

if TYPE_CHECKING:
    from sentinel.store.run_reader import RunReader

log = logging.getLogger(__name__)

SUMMARY_NAME = "summary.json"
MAX_SUMMARY_BYTES = 2048
SPARKLINE_POINTS = 64
READING = "reading"
"""State of a run whose summary is being made: nothing else is known of it yet."""
FOREIGN_AGENT_SECONDS = 180.0
"""An agent of another node that has written nothing for so long is taken for gone."""

_FORMER_HEALTH = frozenset({"ok", "warning", "critical"})
"""The health in a summary of an earlier version, also of a run that is over."""
_MAIN_SIGNALS = ("reward", "loss", "eval_loss", "grad_norm")
MAX_SHOWN_NOTE_CHARS = 200
_MAX_TEXT_CHARS = 120
_MAX_TAGS = 10


def main_signal(names: Collection[str]) -> str:
    """The signal that is shown in a list: the reward, else the loss; empty if there is none."""
    return next((name for name in (*_MAIN_SIGNALS, *names) if name in names), "")


Curve = tuple[str, list[float | None], float | None]
"""A signal, its values in short, and its last value; a value that is not finite is None."""

_NO_CURVE: Curve = ("", [], None)


def make_summary(state: Mapping[str, Any], sparkline: Curve) -> JsonObject:
    """The summary of a run in that state, see `/api/run`.

    Keys: run, name (as given), state, health (the status of its verdict), step, attempt,
    last_written, started and ended (seconds since the epoch, or None), host, framework, algorithm,
    model, project, tags, worst_case (subject and severity, or None), note (the start of the note on
    the run) and sparkline (name, values and last).
    """
    metadata = state.get("metadata", {})
    name, values, last = sparkline
    texts = {
        "host": state.get("host", ""),
        "framework": metadata.get("framework", ""),
        "algorithm": metadata.get("algorithm", ""),
        "model": metadata.get("model", ""),
        "name": state.get("name", ""),
        "project": state.get("project", ""),
    }
    return {
        "run": state["run"],
        "state": state["state"],
        "health": status_of(state, [*state.get("cases", ()), *state.get("incidents", ())]),
        "step": state.get("step"),
        "attempt": state.get("attempt", 0),
        "training": state.get("training", 1),
        "last_written": _time(state.get("last_step_time")) or _time(state.get("started")),
        "started": _time(state.get("started")),
        "ended": _time(state.get("ended")),
        **{key: str(text)[:_MAX_TEXT_CHARS] for key, text in texts.items()},
        "tags": [str(tag)[:40] for tag in state.get("tags", [])[:_MAX_TAGS]],
        "worst_case": _worst_case(state),
        "note": state.get("note", ""),
        "sparkline": {
            "name": name[:_MAX_TEXT_CHARS],
            "values": [_rounded(value) for value in values[-SPARKLINE_POINTS:]],
            "last": _rounded(last),
        },
    }


def read_summary(state: Mapping[str, Any], reader: RunReader) -> JsonObject:
    """The summary of a run in that state, with the sparkline that `reader` reads."""
    note = read_note(reader.path.parent / NOTE_NAME)
    # The end of a run closes its cases; an active one has its problems in the state.
    cases = () if state.get("state") in ACTIVE_STATES else reader.cases()
    state = {**state, "cases": problems_of(state, cases), "note": short_note(note)}
    of_training = {
        each["name"]: each["latest"] for each in reader.signals() if each["event"] != "heartbeat"
    }
    name = main_signal(of_training)
    if not name:
        return make_summary(state, _NO_CURVE)
    series = reader.series([name], points=SPARKLINE_POINTS)["series"].get(name, {})
    return make_summary(state, (name, series.get("mean", []), of_training[name]))


def write_summary(directory: Path, summary: JsonObject) -> None:
    """Replace the summary in the directory of a run. Raises OSError."""
    body = encode_summary(summary)
    empty = make_summary({"run": "", "state": ""}, _NO_CURVE)
    for key in ("tags", "name", "note", "model", "host", "worst_case", "project", "sparkline"):
        # Only texts of many bytes per character make it so long.
        if len(body) > MAX_SUMMARY_BYTES:
            summary = summary | {key: empty[key]}
            body = encode_summary(summary)
    # A process that writes a note replaces it too.
    replace_file(directory / SUMMARY_NAME, body)


def add_summary(directory: Path, summary: JsonObject) -> None:
    """Write the summary of a run of long ago. Its directory stays as old as it is."""
    times = [(path, path.stat()) for path in (directory / DATABASE_NAME, directory)]
    write_summary(directory, summary)
    _, written = times[0]
    for path, status in ((directory / SUMMARY_NAME, written), (directory, times[1][1])):
        os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns))


def note_in_summary(directory: Path, note: Note | None) -> None:
    """Show a note in the summary that a run has; it stays as old as it is. Raises OSError."""
    path = directory / SUMMARY_NAME
    try:
        status, summary = path.stat(), parse_object(path.read_text(errors="replace"))
    except FileNotFoundError:
        return
    if not summary.get("run"):
        # It is damaged: the next summary has the note.
        return
    write_summary(directory, summary | {"note": short_note(note)})
    # Later by a microsecond: the list of runs reads what has another time.
    os.utime(path, ns=(status.st_atime_ns, status.st_mtime_ns + 1000))


def short_note(note: Note | None) -> str:
    """The start of a note on one line; empty without one."""
    return "" if note is None else clean(note.text, MAX_SHOWN_NOTE_CHARS)


@dataclass(slots=True)
class RunEntry:
    """A run in the list; `body` is its summary as JSON, `search` the text that a filter sees.

    `name` is that which the user gave it, if any.
    """

    run: str
    directory: Path
    stamp: tuple[int, int]
    body: bytes
    state: str = "unknown"
    health: str = "unknown"
    step: int = -1
    last_written: float = 0.0
    started: float = 0.0
    name: str = ""
    host: str = ""
    framework: str = ""
    model: str = ""
    project: str = ""
    tags: tuple[str, ...] = ()
    problem: str = ""
    """Subject of the worst case; empty without one."""
    search: str = ""
    is_live: bool = False
    is_log: bool = False
    """Whether the run is known by its log alone, which no agent follows."""
    is_complete: bool = True
    """Whether the summary was read; else the run has none yet."""
    is_outdated: bool = False
    """Whether the database has what followed the summary."""


@dataclass
class RunIndex:
    """The runs of the home directory, read again when a file changed.

    `summarise` makes the summary of a run without one from its database; it raises if it cannot.
    """

    summarise: Callable[[str, Path], JsonObject]
    clock: Callable[[], float] = time.time
    _entries: dict[str, RunEntry] = field(default_factory=dict, init=False)
    _incomplete: list[RunEntry] = field(default_factory=list, init=False)
    _summarised: set[tuple[Path, int]] = field(default_factory=set, init=False)
    """Runs whose database was read, or cannot be read, and the time of the file it replaces."""

    def entries(self) -> list[RunEntry]:
        """The runs as of the last `refresh`; callable from any thread."""
        return list(self._entries.values())

    def refresh(self) -> None:
        """Read what changed. May wait for a file server."""
        found: dict[str, RunEntry] = {}
        shared = list_shared_run_ids()
        for run, directory in list_current_run_dirs().items():
            entry = self._read(run, directory, self._entries.get(run))
            if entry is not None:
                entry.is_live = self._is_live(entry, is_shared=run in shared)
                found[run] = self._read_end(entry)
        self._entries = found
        # The newest first: it is at the top of the list.
        self._incomplete = sorted(
            (
                each
                for each in found.values()
                if (each.is_outdated or not each.is_complete)
                and (each.directory, each.stamp[0]) not in self._summarised
            ),
            key=lambda each: each.last_written,
        )

    def complete_one(self) -> bool:
        """Make the summary of one run that has none; whether there may be further ones."""
        if not self._incomplete:
            return False
        entry = self._incomplete.pop()
        self._summarised.add((entry.directory, entry.stamp[0]))
        try:
            summary = self.summarise(entry.run, entry.directory / DATABASE_NAME)
            made = run_entry(entry.run, entry.directory, entry.stamp, encode_summary(summary))
            made.is_live = entry.is_live
            self._entries[entry.run] = made
            # The home directory may be read-only.
            with suppress(OSError):
                if not made.is_live:
                    add_summary(entry.directory, summary)
        except Exception as error:
            log.warning("Run %s cannot be summarised: %s", entry.run, error)
            entry.state = "unknown" if entry.state == READING else entry.state
        return True

    def _read(self, run: str, directory: Path, known: RunEntry | None) -> RunEntry | None:
        """The entry of a run; None if it has no data."""
        path = f"{directory}/{SUMMARY_NAME}"
        try:
            # With the functions of `os`, since there may be tens of thousands.
            status = os.stat(path)  # noqa: PTH116
            stamp = status.st_mtime_ns, status.st_size
            if known is None or known.stamp != stamp or known.directory != directory:
                with open(path, "rb") as file:  # noqa: PTH123
                    known = run_entry(run, directory, stamp, file.read(MAX_SUMMARY_BYTES))
        except OSError:
            known = self._without_summary(run, directory, known)
        return known

    def _read_end(self, entry: RunEntry) -> RunEntry:
        """The entry of a run that may have ended since its summary was read.

        An agent that ends writes the last one, unless the disk is too slow: then the database is
        the newer file.
        """
        if entry.is_live or entry.state not in ACTIVE_STATES:
            return entry
        entry = self._read(entry.run, entry.directory, entry) or entry
        with suppress(OSError):
            written = (entry.directory / DATABASE_NAME).stat().st_mtime_ns
            entry.is_outdated = entry.state in ACTIVE_STATES and written > entry.stamp[0]
        return entry

    def _without_summary(
        self, run: str, directory: Path, known: RunEntry | None
    ) -> RunEntry | None:
        try:
            status = (directory / DATABASE_NAME).stat()
        except OSError:
            return None
        stamp = status.st_mtime_ns, -1
        if known is not None and known.directory == directory and known.stamp == stamp:
            return known
        written = status.st_mtime
        body = encode_summary({"run": run, "state": READING, "last_written": written})
        entry = run_entry(run, directory, stamp, body)
        entry.is_complete = False
        return entry

    def _is_live(self, entry: RunEntry, *, is_shared: bool) -> bool:
        """Whether an agent serves the run, as far as this node can see.

        `is_shared` is whether the run has files in shared memory, as that of each agent has.
        """
        if is_shared and is_agent_running(shared_run_dir(entry.run)):
            return True
        if entry.state not in ACTIVE_STATES:
            return False
        if is_agent_running(entry.directory):
            return True
        is_foreign = entry.host not in {"", os.uname().nodename}
        return is_foreign and self.clock() - entry.stamp[0] / 1e9 < FOREIGN_AGENT_SECONDS


def run_entry(run: str, directory: Path, stamp: tuple[int, int], body: bytes) -> RunEntry:
    """The entry of a run whose summary is the JSON object `body`."""
    summary = parse_object(body.decode(errors="replace"))
    keys = ("state", "health", "host", "framework", "model", "project")
    name = str(summary.get("name") or "")
    texts = {key: intern(str(summary.get(key) or "")) for key in keys}
    if texts["health"] in _FORMER_HEALTH:
        texts["health"] = status_of(summary, [{"severity": texts["health"]}])
    tags = summary.get("tags")
    names = tuple(intern(str(tag)) for tag in tags) if isinstance(tags, list) else ()
    worst = summary.get("worst_case")
    subject = str(worst.get("subject", "")) if isinstance(worst, dict) else ""
    step = summary.get("step")
    algorithm, note = str(summary.get("algorithm") or ""), str(summary.get("note") or "")
    return RunEntry(
        run,
        directory,
        stamp,
        body,
        step=step if isinstance(step, int) else -1,
        last_written=_time(summary.get("last_written")) or stamp[0] / 1e9,
        started=_time(summary.get("started")) or 0.0,
        name=intern(name),
        state=texts["state"] or "unknown",
        health=texts["health"] or "unknown",
        host=texts["host"],
        framework=texts["framework"],
        model=texts["model"],
        project=texts["project"],
        tags=names,
        problem=subject,
        is_log=summary.get("is_log") is True,
        search="\n".join([run, name, *texts.values(), algorithm, *names, subject, note]).lower(),
    )


def _worst_case(state: Mapping[str, Any]) -> JsonObject | None:
    cases = state.get("cases", [])
    if not cases:
        return None
    worst = cases[0]
    subject = (worst.get("message") or {}).get("subject") or worst.get("subject", "")
    return {"subject": str(subject)[:_MAX_TEXT_CHARS], "severity": worst["severity"]}


def _time(value: Any) -> float | None:
    is_number = isinstance(value, int | float) and isfinite(value)
    return round(float(value), 3) if is_number else None


def _rounded(value: float | None) -> float | None:
    return None if value is None or not isfinite(value) else float(f"{value:.4g}")


def encode_summary(summary: JsonObject) -> bytes:
    """A summary as JSON."""
    return json.dumps(summary, ensure_ascii=False, separators=(",", ":")).encode(
        errors="backslashreplace"
    )
