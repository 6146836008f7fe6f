"""Access of a command to the database of a run."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.cli._options import error_exit, exit_on

if TYPE_CHECKING:
    from sqlite3 import Connection


def run_database_path(command: str, run: str) -> Path:
    """Path of the database of `run`; exits with an error if there is no such run."""
    from sentinel.agent.run_lookup import UnknownRunError, find_database
    from sentinel.transport.paths import RunIdError

    with exit_on(command, UnknownRunError, RunIdError):
        return find_database(run)


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
