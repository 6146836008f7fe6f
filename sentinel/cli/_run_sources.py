"""The runs that a command reads: by id, by the path of their database, or by that of a log."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sentinel.cli._options import error_exit, settings_environ

if TYPE_CHECKING:
    from sentinel.cli._progress import ProgressBar
    from sentinel.report.comparison import ComparedRun

RUN_OR_LOG_HELP = "Run id, path of a run's database, or path of a log file or folder."


class _Source(NamedTuple):
    """Name and database of a run, which was imported from `log`."""

    name: str
    database: Path
    log: Path | None = None


def open_runs(
    command: str, arguments: Sequence[str], config: Path | None = None, name: str = ""
) -> list[ComparedRun]:
    """The runs that the arguments name; logs are imported first, unless they are unchanged.

    A folder of logs stands for all of them. `name` is shown instead of the own one of a single run.
    Exits with an error if one cannot be read.
    """
    from sqlite3 import DatabaseError

    from sentinel.report.comparison import ComparedRun
    from sentinel.store.database import NewerSchemaError
    from sentinel.store.run_names import unused_name
    from sentinel.store.run_reader import RunReader

    runs: list[ComparedRun] = []
    for argument in arguments:
        for own_name, path, log in _databases(command, argument, config):
            run = name or own_name
            try:
                state = _state(run, path, log)
            except (NewerSchemaError, DatabaseError) as error:
                raise error_exit(command, f"cannot use {path}: {error}") from None
            directory = path.parent if log is None else None
            run = unused_name(run, [each.name for each in runs])
            runs.append(ComparedRun(run, RunReader(path), state, directory))
    if not runs:
        raise error_exit(command, "none of the logs can be read.")
    return runs


def _databases(command: str, argument: str, config: Path | None) -> Iterator[_Source]:
    """Each run that the argument stands for."""
    from sentinel.readers.trackio import run_names
    from sentinel.store.stored_runs import run_database
    from sentinel.transport.paths import DATABASE_NAME, home_dir

    stored, path = run_database(argument), Path(argument)
    database = path / DATABASE_NAME if path.is_dir() else path
    if stored is not None:
        yield _Source(argument, stored)
    elif database.suffix == ".db" and database.is_file() and not run_names(database):
        yield _Source(database.absolute().parent.name, database.absolute())
    elif path.exists() or path.parent.is_file():
        yield from _import_logs(command, path, config)
    else:
        from sentinel.store.run_names import unknown_run_hint

        hint = unknown_run_hint(argument)
        raise error_exit(
            command, f"no run {argument!r} under {home_dir()}, and no such file. {hint}"
        )


def _import_logs(command: str, path: Path, config: Path | None) -> Iterator[_Source]:
    """The logs at or below `path`, imported into the cache."""
    from sentinel.cli._progress import ProgressBar
    from sentinel.config.settings import ConfigError, load_replay_settings
    from sentinel.readers.log_file import read_error_text
    from sentinel.readers.log_folder import find_logs
    from sentinel.store.imports.log_worker import cached_import

    try:
        settings = load_replay_settings(environ=settings_environ(config))
        logs = find_logs(path)
    except ConfigError as error:
        raise error_exit(command, str(error)) from None
    except OSError as error:
        raise error_exit(command, f"cannot read {path}: {read_error_text(error)}") from None
    if not logs:
        raise error_exit(command, f"there is no log at or below {path}.")
    for log in logs:
        database, problem = path, log.problem
        if not problem:
            try:
                with ProgressBar(f"Reading {log.path.name}") as bar:
                    progress = partial(_show_progress, bar)
                    database = cached_import(log.path, settings, run=log.run, on_commit=progress)
            except (OSError, ValueError) as error:
                problem = read_error_text(error)
        if not problem:
            yield _Source(log.run, database, log.path)
        elif len(logs) == 1:
            raise error_exit(command, f"cannot read {log.path}: {problem}")
        else:
            print(f"sentinel {command}: cannot read {log.path}: {problem}", file=sys.stderr)


def _show_progress(bar: ProgressBar, records: int) -> None:
    bar.update(None, f"{records} records")


def _state(run: str, database: Path, log: Path | None) -> dict[str, Any]:
    """What the agent of the run answers, or the state that its database holds."""
    from sentinel.agent.run_lookup import query_run
    from sentinel.metrics.stored_state import log_state, stored_state
    from sentinel.store.imports.log_import import is_settled
    from sentinel.store.notes import log_note_path, read_note

    if log is not None:
        is_growing = not is_settled(log, time.time())
        found = log_state(stored_state(database, run, is_log=True), is_growing=is_growing)
        note = read_note(log_note_path(log))
        return found | {"note": note.to_dict()} if note else found
    return query_run(run, database).state
