"""The runs that a backtest replays: stored ones, and logs."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path

from sentinel.readers.log_file import read_error_text
from sentinel.readers.log_folder import find_logs
from sentinel.store.run_names import unused_name
from sentinel.store.stored_runs import find_databases, has_outcome, named_database, stored_runs
from sentinel.transport.paths import DATABASE_NAME, home_dir


@dataclass(frozen=True, slots=True)
class RunSource:
    """A run by its name, and the path of its database or log."""

    name: str
    path: Path


@dataclass(frozen=True, slots=True)
class SkippedRun:
    """A run that is not replayed, and why."""

    name: str
    path: Path
    reason: str


@dataclass(frozen=True, slots=True)
class FoundRuns:
    """The runs that can be replayed, each under a name of its own, and those that cannot."""

    runs: list[RunSource] = field(default_factory=list)
    skipped: list[SkippedRun] = field(default_factory=list)


class UnknownRunError(ValueError):
    """No run and no file has that name."""

    def __init__(self, argument: str) -> None:
        super().__init__(f"no run {argument!r} under {home_dir()}, and no such file.")
        self.argument = argument


def find_runs(arguments: Sequence[str], now: float) -> FoundRuns:
    """The runs that the arguments name; without any, those of the home directory that ended.

    An argument is a run id, the directory or database of a run, a folder of these, a log, or a
    folder of logs. `now` is in seconds since the epoch. Raises UnknownRunError.
    """
    found = FoundRuns()
    sources = _home_runs(now) if not arguments else map(_named_runs, arguments)
    paths: set[Path] = set()
    for each in (each for several in sources for each in several):
        if isinstance(each, SkippedRun):
            found.skipped.append(each)
        elif each.path.absolute() not in paths:
            paths.add(each.path.absolute())
            name = unused_name(each.name, [run.name for run in found.runs])
            found.runs.append(replace(each, name=name))
    return found


def _home_runs(now: float) -> Iterator[list[RunSource | SkippedRun]]:
    for run in stored_runs(home_dir(), now):
        database = run.directory / DATABASE_NAME
        # One that has an outcome may just have been marked by a person.
        has_ended = run.status == "finished" or has_outcome(run.directory)
        if has_ended and run.status != "live":
            if database.is_file():
                yield [RunSource(run.run, database)]
        else:
            reason = (
                "it or its agent runs"
                if run.status == "live"
                else "it may go on: it has no outcome"
            )
            yield [SkippedRun(run.run, run.directory, reason)]


def _named_runs(argument: str) -> list[RunSource | SkippedRun]:
    path = Path(argument)
    database = named_database(path)
    if database is not None:
        return [RunSource(database.absolute().parent.name, database)]
    if path.is_dir() and (databases := find_databases(path)):
        return [RunSource(each.parent.name, each) for each in databases]
    if not path.exists() and not path.parent.is_file():
        raise UnknownRunError(argument)
    try:
        logs = find_logs(path)
    except OSError as error:
        return [SkippedRun(path.name, path, read_error_text(error))]
    return [
        SkippedRun(log.run, log.path, log.problem) if log.problem else RunSource(log.run, log.path)
        for log in logs
    ]
