"""The records of a run, from its database or from its log, as what can be replayed."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import closing
from dataclasses import dataclass, replace
from pathlib import Path
from sqlite3 import DatabaseError

from sentinel.model.record import Record
from sentinel.readers.format_detection import open_log
from sentinel.readers.log_reader import LogReader
from sentinel.store.stored_runs import named_database


def open_run(path: Path, keys: Mapping[str, str], writer: str = "") -> LogReader | StoredLog:
    """The records of a run: see `named_database`, else those of the log at `path`.

    `keys` are logged keys with their signals. Of a log with rows of several writers, those of
    `writer` are read, or of the first one if that is empty. Raises OSError and ValueError if it
    cannot be read.
    """
    database = named_database(path)
    if database is not None:
        return StoredLog(database)
    return replace(open_log(path), keys=keys, writer=writer)


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
        # Replays of logs start without them.
        from sentinel.store.database import NewerSchemaError, connect_read_only  # noqa: PLC0415
        from sentinel.store.history import History  # noqa: PLC0415

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
