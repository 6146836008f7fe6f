"""The newest texts that the model generated, stored in the database of the run only.

The texts are untrusted: they are shown on request and never part of a notification or a log.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.store import database

if TYPE_CHECKING:
    from sentinel.pipeline.engine import Result

MAX_SAMPLES_RETURNED = 500
"""Most samples of one query."""

_NEWEST_SAMPLES_SQL = """
select attempt, step, rank, time, vals, attributes, id from sample
where (?1 is null or step = ?1) and (?2 is null or (attempt, step, id) <
    (select attempt, step, id from sample where id = ?2))
order by attempt desc, step desc, id desc
"""


@dataclass
class SampleStore:
    """Rows of the tables `sample` and `sample_file`, in the caller's transaction.

    A result consumer that stores the newest `max_stored` samples.
    """

    connection: sqlite3.Connection
    max_stored: int = 2000
    known_until: float = 0.0
    """Samples up to this time (epoch seconds) may be stored already."""

    def update(self, result: Result) -> None:
        """Store the record if it is a sample."""
        record = result.record
        if record.event is not Event.SAMPLE or record.rank == WHOLE_RUN:
            return
        # JSON, because a sample can hold surrogates, which SQLite does not accept in text.
        encoded = json.dumps(dict(record.values)), json.dumps(dict(record.attributes))
        if record.time <= self.known_until and self._is_stored(record, encoded):
            return
        row = self.connection.execute(
            "insert into sample(attempt, step, rank, time, vals, attributes)"
            " values(?, ?, ?, ?, ?, ?)",
            (record.attempt, record.step, record.rank, record.time, *encoded),
        )
        newest = row.lastrowid or 0
        self.connection.execute("delete from sample where id <= ?", (newest - self.max_stored,))

    def _is_stored(self, record: Record, encoded: tuple[str, str]) -> bool:
        query = "select 1 from sample where step = ? and rank = ? and time = ? and attributes = ?"
        row = (record.step, record.rank, record.time, encoded[1])
        return self.connection.execute(query, row).fetchone() is not None

    def newest(
        self,
        step: int | None = None,
        limit: int = 20,
        *,
        search: str = "",
        before: int | None = None,
    ) -> list[dict[str, Any]]:
        """The newest `limit` samples, of one step or of all, in the order they arrived.

        Only those whose prompt or completion contains `search`, in any case, and only those before
        the sample with the id `before`. Keys: id, attempt, step, rank,
        time (seconds since the epoch), prompt, completion, rewards (by name; a single reward has
        the name ""), length and prompt_length (characters before truncation), advantage and
        finished (boolean); None if the record has no such value.
        """
        wanted = search.casefold()
        limit = max(0, min(limit, MAX_SAMPLES_RETURNED))
        found = (
            sample
            for row in self.connection.execute(_NEWEST_SAMPLES_SQL, (step, before))
            if _contains(sample := _sample_to_dict(row), wanted)
        )
        return [*islice(found, limit)][::-1]

    def file_marks(self) -> dict[str, str]:
        """The sample files that were read: path to the mark of their state."""
        return dict(self.connection.execute("select path, mark from sample_file"))

    def store_file_marks(self, files: Mapping[str, str]) -> None:
        """Store that these files were read."""
        self.connection.executemany(
            "insert or replace into sample_file(path, mark) values(?, ?)", files.items()
        )


def delete_samples(database_path: Path) -> int:
    """Delete all stored texts, and what the file still holds of them; returns how many.

    Raises sqlite3.DatabaseError, also if the database stays locked.
    """
    with closing(database.connect(database_path)) as connection:
        deleted = connection.execute("delete from sample").rowcount
        # Free pages, and pages in the write-ahead log, hold deleted texts until they are reused.
        connection.execute("vacuum")
        connection.execute("pragma wal_checkpoint(truncate)")
        return deleted


def _contains(sample: Mapping[str, Any], text: str) -> bool:
    """Whether prompt or completion contain a text in lower case."""
    return not text or any(text in sample[name].casefold() for name in ("completion", "prompt"))


def _sample_to_dict(row: tuple[Any, ...]) -> dict[str, Any]:
    attempt, step, rank, time, values_json, attributes_json, number = row
    values, attributes = json.loads(values_json), json.loads(attributes_json)
    finished = values.get("finished")
    return {
        "id": number,
        "attempt": attempt,
        "step": step,
        "rank": rank,
        "time": time,
        "prompt": attributes.get("prompt", ""),
        "completion": attributes.get("completion", ""),
        "rewards": {
            name.removeprefix("reward").removeprefix("/"): value
            for name, value in values.items()
            if name == "reward" or name.startswith("reward/")
        },
        "length": values.get("length"),
        "prompt_length": values.get("prompt_length"),
        "advantage": values.get("advantage"),
        "finished": None if finished is None else bool(finished),
    }
