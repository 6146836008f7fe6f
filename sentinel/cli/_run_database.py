"""Access of a command to the database of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.cli._options import error_exit
from sentinel.cli._run_ids import similar_runs_text

if TYPE_CHECKING:
    from sqlite3 import Connection


def run_database_path(command: str, run: str) -> Path:
    """Path of the database of `run`; exits with an error if there is no such run."""
    from sentinel.transport.paths import DATABASE_NAME, RunIdError, current_run_dir, home_dir

    try:
        path = current_run_dir(run) / DATABASE_NAME
    except RunIdError as error:
        raise error_exit(command, str(error)) from None
    if not path.is_file():
        similar = similar_runs_text(run) or "`sentinel status --all` lists the runs."
        raise error_exit(command, f"no run {run!r} under {home_dir()}. {similar}")
    return path


@contextmanager
def open_run_database(command: str, run: str, detector: str | None = None) -> Iterator[Connection]:
    """A connection to the run's database; exits with an error if run or detector is unknown."""
    from sqlite3 import DatabaseError

    from sentinel.store.database import NewerSchemaError, connect

    path = run_database_path(command, run)
    refuse_copy(command, run, path.parent)
    if detector is not None:
        _check_detector(command, detector)
    try:
        with closing(connect(path)) as connection:
            yield connection
    except (NewerSchemaError, DatabaseError) as error:
        raise error_exit(command, f"cannot use {path}: {error}") from None


def refuse_copy(command: str, run: str, directory: Path) -> None:
    """Exit with an error if the agent would overwrite what is stored in that run directory."""
    from sentinel.transport.paths import is_copy

    if is_copy(directory):
        message = (
            f"the agent of {run} works in shared memory that this process does not have."
            f" Run `sentinel {command}` in its container, with its SENTINEL_RUNTIME_DIR, or use its"
            " page."
        )
        raise error_exit(command, message)


def _check_detector(command: str, detector: str) -> None:
    from sentinel.config.plugins import unknown_detector_text

    if text := unknown_detector_text(detector):
        raise error_exit(command, text)
