"""Finds the databases of runs, by what a user names."""

from __future__ import annotations

from pathlib import Path

from sentinel.transport.paths import DATABASE_NAME, RunIdError, current_run_dir


def named_database(argument: Path) -> Path | None:
    """The database of the run that is named by its id, its directory or its database, if any."""
    path = argument / DATABASE_NAME if argument.is_dir() else argument
    if path.name == DATABASE_NAME and path.is_file():
        return path
    if not argument.exists():
        try:
            path = current_run_dir(str(argument)) / DATABASE_NAME
        except RunIdError:
            # A path is no run id.
            return None
        return path if path.is_file() else None
    return None


def find_databases(folder: Path) -> list[Path]:
    """The databases of the runs in a home directory, or in a folder that holds their folders."""
    return sorted({*folder.glob(f"*/{DATABASE_NAME}"), *folder.glob(f"runs/*/{DATABASE_NAME}")})
