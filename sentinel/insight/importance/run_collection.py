"""Runs with their settings and an outcome, from runs of the home directory, logs and tables."""

from __future__ import annotations

import csv
import json
import sqlite3
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from math import isfinite, nan
from pathlib import Path
from typing import Any, Literal, get_args

from sentinel.model.json_safe import parse_object
from sentinel.model.record import Event, Record
from sentinel.model.run_states import ACTIVE_STATES
from sentinel.readers.format_detection import open_log
from sentinel.readers.log_file import open_log_file, read_error_text
from sentinel.readers.log_folder import find_logs
from sentinel.readers.rows import row_step
from sentinel.signals.catalogue import POSITION_KEYS, SIGNALS, better_value, canonical_name
from sentinel.store.database import NewerSchemaError
from sentinel.store.run_reader import RunReader
from sentinel.store.run_settings import to_value
from sentinel.store.run_summary import SUMMARY_NAME
from sentinel.store.series.curve_results import curve_results
from sentinel.store.stored_runs import find_databases, run_database
from sentinel.transport.paths import DATABASE_NAME, home_dir, list_current_run_dirs

Statistic = Literal["last", "best", "mean"]
STATISTICS: tuple[Statistic, ...] = get_args(Statistic)
"""What of a signal is the outcome: its last value, its best one, or the mean of the last tenth."""

DEFAULT_OUTCOMES = ("outcome", "eval_reward", "reward", "eval_loss", "loss")
"""What is explained unless it is named: the first that at least half of the runs have."""

_TABLE_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson", ".csv", ".tsv"})
_NAME_COLUMNS = ("name", "Name", "run", "id", "run_name", "run_id", "trial_id")
_SETTINGS_COLUMNS = ("settings", "config", "params", "parameters", "hparams")
_STATE_COLUMNS = ("failed", "state", "State", "status")
_FAILED_STATES = frozenset({"failed", "died", "crashed", "killed", "exception", "exit", "true"})
_MAX_TABLE_BYTES = 2**28
_MAX_NAMES, _MAX_OUTCOMES = 20, 200
_MAX_POINTS = 5000
_POSITIONS = POSITION_KEYS | {"global_step", "epoch"}

CollectedRun = dict[str, Any]
"""A run with `name`, `settings`, `outcome` (None if it has none, NaN if that was logged) and
`failed`."""

Progress = Callable[[int, int], None]


@dataclass(frozen=True, slots=True)
class Collection:
    """The `runs` with the outcome that they share, and what about them is to be known.

    `outcomes` are names that at least half of them have, which might be outcomes too.
    """

    outcome: str
    runs: list[CollectedRun]
    notes: list[str] = field(default_factory=list)
    outcomes: list[str] = field(default_factory=list)


def collect_runs(
    sources: Iterable[str | Path] | Mapping[str, Path] = (),
    outcome: str = "",
    *,
    statistic: Statistic = "last",
    better: str = "",
    progress: Progress | None = None,
) -> Collection:
    """The runs of all sources; without any, those of the home directory.

    A source is a run id, the database or folder of a run, a log, a table, or a folder of any of
    these; of a mapping, the keys are the names of the runs. A table (.json, .jsonl or .csv) has a
    run in each row: its settings in an object such as `config`, or one in each column. `outcome` is
    a signal, a logged key or a column; `statistic` is what of a signal counts. Raises ValueError if
    no source has runs.
    """
    if statistic not in STATISTICS:
        raise ValueError(f"the statistic must be one of {', '.join(STATISTICS)}.")
    names = (outcome, canonical_name(outcome)) if outcome else DEFAULT_OUTCOMES
    wanted = _Wanted(tuple(dict.fromkeys(names)), statistic, better)
    if isinstance(sources, Mapping):
        named = [replace(part, name=name) for name in sources for part in _parts(sources[name])]
    else:
        named = [part for source in sources for part in _parts(source)]
    parts = [*dict.fromkeys(named)] or [*_home_runs()]
    runs: list[_ValuedRun] = []
    problems: list[str] = []
    for place, part in enumerate(parts):
        if progress is not None:
            progress(place, len(parts))
        try:
            runs += part.kind(part.name, part.path, wanted)
        except (OSError, ValueError, sqlite3.Error, NewerSchemaError, csv.Error) as error:
            text = read_error_text(error) if isinstance(error, OSError | ValueError) else error
            problems.append(f"{part.path}: {text}")
    if not runs:
        where = "in the given files" if named else f"under {home_dir()}"
        raise ValueError(" ".join([f"there are no runs {where}.", *problems[:3]]))
    chosen = _choose(runs, wanted.names, outcome)
    notes, outcomes = [*_notes(runs, problems)], [*_shared_outcomes(runs)]
    return Collection(chosen, [run.collected(chosen) for run in runs], notes, outcomes)


@dataclass(frozen=True, slots=True)
class _Wanted:
    """Names under which the outcome may be found, and what of it counts."""

    names: Sequence[str]
    statistic: Statistic
    better: str


@dataclass(frozen=True, slots=True)
class _ValuedRun:
    """A run with the values of each outcome that it has."""

    name: str
    settings: Mapping[str, Any]
    values: Mapping[str, float]
    state: str = ""
    known: Iterable[str] = ()
    """What the run has that might be an outcome."""

    def collected(self, outcome: str) -> CollectedRun:
        value = self.values.get(outcome)
        return {
            "name": self.name,
            "settings": dict(self.settings),
            "outcome": value,
            "failed": self.state in _FAILED_STATES,
        }


@dataclass(frozen=True, slots=True)
class _Part:
    """A file or folder, and the function that reads its runs."""

    kind: Callable[[str, Path, _Wanted], list[_ValuedRun]]
    name: str
    path: Path


def _parts(source: str | Path) -> Iterator[_Part]:
    """What is to be read for a source. Raises ValueError if there is no such thing."""
    path, stored = Path(source), run_database(str(source))
    if stored is not None:
        yield _Part(_stored_run, str(source), stored)
    elif path.name == DATABASE_NAME or (path / DATABASE_NAME).is_file():
        database = path if path.name == DATABASE_NAME else path / DATABASE_NAME
        yield _Part(_stored_run, database.absolute().parent.name, database)
    elif path.is_dir():
        yield from _folder_parts(path)
    elif _is_table(path):
        yield _Part(_table_runs, path.stem, path)
    elif path.exists() or path.parent.is_file():
        yield from _log_parts(path)
    else:
        raise ValueError(f"no run {str(source)!r} under {home_dir()}, and no such file.")


def _folder_parts(folder: Path) -> Iterator[_Part]:
    """Runs of a home directory, else logs and tables."""
    databases = find_databases(folder)
    for database in databases:
        yield _Part(_stored_run, database.parent.name, database)
    if databases:
        return
    logs = [*_log_parts(folder)]
    files = {part.path for part in logs}
    yield from logs
    for path in sorted(folder.iterdir()):
        if path not in files and path.is_file() and _is_table(path):
            yield _Part(_table_runs, path.stem, path)


def _log_parts(path: Path) -> Iterator[_Part]:
    for log in find_logs(path):
        if not _is_table(log.path):
            yield _Part(_log_run, log.run, log.path)


def _home_runs() -> Iterator[_Part]:
    for run, directory in list_current_run_dirs().items():
        if (directory / DATABASE_NAME).is_file():
            yield _Part(_stored_run, run, directory / DATABASE_NAME)


def _stored_run(name: str, database: Path, wanted: _Wanted) -> list[_ValuedRun]:
    reader = RunReader(database)
    signals = {each["name"]: each for each in reader.signals()}
    names = [each for each in wanted.names if each in signals]
    curves = reader.series(names, points=_MAX_POINTS)["series"] if names else {}
    values = {each: _value(curves[each], each, wanted, signals[each]) for each in names}
    try:
        state = parse_object((database.parent / SUMMARY_NAME).read_text()).get("state", "")
    except (OSError, UnicodeDecodeError):
        state = ""
    known = {each: value for each, value in values.items() if value is not None}
    return [_ValuedRun(name, reader.metadata(), known, state, signals)]


def _log_run(name: str, path: Path, wanted: _Wanted) -> list[_ValuedRun]:
    reader = open_log(path)
    curves: dict[str, dict[str, Any]] = {
        each: {"x": [], "mean": [], "min": None, "max": None, "bad": []} for each in wanted.names
    }
    known: set[str] = set()
    settings: dict[str, Any] = {}
    state = ""
    for record in reader:
        if record.event is Event.STOP:
            state = record.attributes.get("outcome", state)
        elif record.event in {Event.START, Event.METADATA}:
            settings |= {**record.values, **record.attributes}
        else:
            known |= record.values.keys()
            _add(record, curves)
    # The stored configuration has more than the settings that are known of its framework.
    settings = reader.settings or settings
    values = {
        each: value
        for each, curve in curves.items()
        if (value := _value(curve, each, wanted)) is not None
    }
    return [_ValuedRun(name, settings, values, state, known)]


def _add(record: Record, curves: Mapping[str, dict[str, Any]]) -> None:
    for name, curve in curves.items():
        value = record.values.get(name)
        if value is not None and isfinite(value):
            curve["x"].append(record.step)
            curve["mean"].append(value)
        elif value is not None:
            curve["bad"].append(record.step)


def _value(
    curve: Mapping[str, Any],
    name: str,
    wanted: _Wanted,
    signal: Mapping[str, Any] | None = None,
) -> float | None:
    """The value of a curve that counts; NaN if that is not finite, None without any value."""
    better = wanted.better or better_value(name)
    summary = curve_results(curve, better, signal)
    last: float | None = summary["last"]
    if wanted.statistic == "best":
        if not better:
            raise ValueError(
                f"whether a lower or a higher {name} is better is not known: state it (--better)"
            )
        best: float | None = summary["best"]
        return best if best is not None else last
    final: float | None = summary["final"]
    return final if wanted.statistic == "mean" else last


def _is_table(path: Path) -> bool:
    """Whether a file has a run in each row, and not a step of one run."""
    suffix = (path.with_suffix("") if path.suffix == ".gz" else path).suffix.lower()
    if suffix not in _TABLE_SUFFIXES:
        return False
    try:
        row = next(_rows(path), {})
    except (OSError, ValueError, csv.Error):
        # The reader of the run reports why.
        return suffix == ".json"
    is_named = any(isinstance(row.get(each), Mapping) for each in _SETTINGS_COLUMNS)
    return "log_history" not in row and (is_named or row_step(row) is None)


def _table_runs(name: str, path: Path, wanted: _Wanted) -> list[_ValuedRun]:
    """The runs of a table. Raises OSError, and ValueError if it is none."""
    rows = [*_rows(path)]
    if not rows:
        raise ValueError("it has no runs")
    return [
        _table_run(row, f"{name} {place}" if len(rows) > 1 else name, wanted)
        for place, row in enumerate(rows, 1)
    ]


def _table_run(row: Mapping[str, Any], name: str, wanted: _Wanted) -> _ValuedRun:
    name_column = next((each for each in _NAME_COLUMNS if each in row), None)
    nested = next((each for each in _SETTINGS_COLUMNS if isinstance(row.get(each), Mapping)), None)
    state_column = next((each for each in _STATE_COLUMNS if each in row), None)
    values = {each: value for each in wanted.names if (value := _number(row.get(each))) is not None}
    if nested is None:
        known = {name_column, state_column, *wanted.names}
        settings = {each: row[each] for each in row if each not in known and not _is_result(each)}
    else:
        settings = dict(row[nested])
    return _ValuedRun(
        name if name_column is None else str(row[name_column]),
        settings,
        values,
        "" if state_column is None else str(row[state_column]).lower(),
        row,
    )


def _number(value: Any) -> float | None:
    """The outcome in a cell: NaN if the run diverged, None if the cell is empty."""
    if value is None or (isinstance(value, str) and not value.strip()):
        return None
    number = to_value(value)
    if isinstance(number, str):
        return None
    return nan if number is None else float(number)


def _is_result(column: str) -> bool:
    """Whether a column is another outcome and no setting, such as the loss beside the reward."""
    name = canonical_name(column)
    return name in SIGNALS and SIGNALS[name].better != ""


def _rows(path: Path) -> Iterator[dict[str, Any]]:
    """The rows of a table. Raises OSError, and ValueError if it is none."""
    with open_log_file(path) as file:
        data = file.read(_MAX_TABLE_BYTES + 1)
    if len(data) > _MAX_TABLE_BYTES:
        raise ValueError(f"it is larger than {_MAX_TABLE_BYTES >> 20} MiB, the limit for a table")
    text = data.decode("utf-8-sig", "replace")
    if text.lstrip().startswith(("[", "{")):
        yield from _json_rows(text)
        return
    lines = text.splitlines()
    delimiter = "\t" if lines and "\t" in lines[0] else ","
    for row in csv.DictReader(lines, delimiter=delimiter):
        yield {name: value for name, value in row.items() if name is not None and value != ""}


def _json_rows(text: str) -> Iterator[dict[str, Any]]:
    """The objects of a list, of an object with the list `runs`, or of one line each."""
    try:
        found = json.loads(text)
    except ValueError:
        found = [json.loads(line) for line in text.splitlines() if line.strip()]
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if isinstance(found, Mapping):
        found = found.get("runs", [found])
    if isinstance(found, list):
        yield from (dict(row) for row in found if isinstance(row, Mapping))


def _choose(runs: Sequence[_ValuedRun], names: Sequence[str], outcome: str) -> str:
    """The name of the outcome: one that most runs have. Raises ValueError if none has any."""
    counts = Counter(name for run in runs for name in names if name in run.values)
    if not counts:
        known = Counter(each for run in runs for each in run.known)
        shown = ", ".join(name for name, _ in known.most_common(_MAX_NAMES))
        missing = f"no run has {outcome}" if outcome else "no run has a reward or a loss"
        raise ValueError(f"{missing}: name the outcome. The runs have: {shown or 'no values'}.")
    usual = [name for name in names if 2 * counts[name] >= len(runs)]
    usual = usual or [max(names, key=lambda name: counts[name])]
    # An outcome that is the same in every run leaves nothing to explain.
    varying = (name for name in usual if len({run.values.get(name) for run in runs} - {None}) > 1)
    return next(varying, usual[0])


def _shared_outcomes(runs: Sequence[_ValuedRun]) -> Iterator[str]:
    """What at least half of the runs have, those first of which better values are known."""
    counts = Counter(name for run in runs for name in {*run.known} - _POSITIONS)
    shared = [name for name, count in counts.items() if 2 * count >= len(runs)]
    yield from sorted(shared, key=lambda name: (not better_value(name), name))[:_MAX_OUTCOMES]


def _notes(runs: Sequence[_ValuedRun], problems: Sequence[str]) -> Iterator[str]:
    if active := sum(run.state in ACTIVE_STATES for run in runs):
        yield f"{active} of {len(runs)} runs have not ended: their values so far count."
    if problems:
        more = f" and {len(problems) - 1} more" if len(problems) > 1 else ""
        yield f"Cannot be read: {problems[0]}{more}."
