"""The stored records of a run as a log that can be replayed."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from sentinel.transport.paths import DATABASE_NAME, RunIdError, current_run_dir

if TYPE_CHECKING:
    from sentinel.model.record import Record


def find_database(argument: Path) -> Path | None:
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


@dataclass
class StoredLog:
    """Iterates over the records in the database of a run; raises ValueError if it is unusable.

    `notice` states if older steps are stored as means. It is known after the iteration.
    """

    path: Path
    notice: str = ""
    skipped: int = 0
    position: int = 0

    def __iter__(self) -> Iterator[Record]:
        from sqlite3 import DatabaseError

        from sentinel.store.database import NewerSchemaError, connect_read_only
        from sentinel.store.history import History

        try:
            with closing(connect_read_only(self.path)) as connection:
                history = History(connection)
                for record in history.records(self.path.parent.name):
                    self.position += 1
                    yield record
                if any(True for _ in history.blocks()):
                    self.notice = "older steps are stored as means of several"
        except (NewerSchemaError, DatabaseError) as error:
            raise ValueError(str(error)) from None
