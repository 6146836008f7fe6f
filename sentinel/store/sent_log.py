"""The keys of notifications that receivers accepted, in a file in shared memory.

An agent whose database is lost reads the rings from their start and finds again what was notified.
The file is beside the rings: it lasts as long as what would be notified again.
"""

from __future__ import annotations

import json
import sqlite3
from contextlib import suppress
from pathlib import Path
from threading import Lock

from sentinel.store.database import transaction
from sentinel.transport.replaced_file import replace_file

MAX_BYTES = 1 << 20
"""Size above which the older half is dropped: several thousand notifications."""

_INSERT_SQL = """
insert or ignore into outbox(key, sink, incident, reason, notification, state, severity, created,
next_at) values(?, ?, ?, ?, '', 'delivered', '', 0, 0)
"""


class SentLog:
    """The file at `path`; `append` is called by the threads of all sinks."""

    def __init__(self, path: Path) -> None:
        self._path, self._lock = path, Lock()

    def append(self, key: str, sink: str, incident: str, reason: str) -> None:
        """Add a notification; not if shared memory is full."""
        line = json.dumps([key, sink, incident, reason]).encode() + b"\n"
        with self._lock, suppress(OSError):
            if self._path.exists() and self._path.stat().st_size > MAX_BYTES:
                self._drop_older_half()
            with self._path.open("ab") as file:
                file.write(line)

    def restore(self, connection: sqlite3.Connection) -> None:
        """Add to the outbox the notifications that it does not have, as delivered.

        Raises sqlite3.Error.
        """
        with transaction(connection, mode="immediate"):
            connection.executemany(_INSERT_SQL, self._rows())

    def _rows(self) -> list[tuple[str, ...]]:
        rows = []
        with suppress(OSError):
            for line in self._path.read_bytes().splitlines():
                # The last line may be a part of one.
                with suppress(ValueError):
                    row = json.loads(line)
                    if isinstance(row, list) and [type(each) for each in row] == [str] * 4:
                        rows.append(tuple(row))
        return rows

    def _drop_older_half(self) -> None:
        lines = self._path.read_bytes().splitlines(keepends=True)
        replace_file(self._path, b"".join(lines[len(lines) // 2 :]))
