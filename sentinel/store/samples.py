"""Samples: the newest texts the model made, kept in the run's database and nowhere else.

They may be anybody's words: they are shown to who asks for them, and never put into a page or a
log.
"""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping
from contextlib import closing
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.engine import Result
from sentinel.store import database

MAX_SAMPLES_RETURNED = 500
"""Texts given at a time."""

_NEWEST_SAMPLES_SQL = """
select attempt, step, rank, time, vals, facts from sample where (?1 is null or step = ?1)
order by attempt desc, step desc, id desc limit ?2
"""


@dataclass
class SampleStore:
    """Rows of the tables `sample` and `sample_file`; an outlet in the caller's transaction.

    The newest `kept` texts stay.
    """

    connection: sqlite3.Connection
    max_stored: int = 2000

    def update(self, result: Result) -> None:
        """Store the record if it is a text."""
        record = result.record
        if record.event is not Event.SAMPLE or record.rank == WHOLE_RUN:
            return
        # As JSON, since a text may hold what no database takes for text.
        told = json.dumps(dict(record.values)), json.dumps(dict(record.attributes))
        row = self.connection.execute(
            "insert into sample(attempt, step, rank, time, vals, facts) values(?, ?, ?, ?, ?, ?)",
            (record.attempt, record.step, record.rank, record.time, *told),
        )
        newest = row.lastrowid or 0
        self.connection.execute("delete from sample where id <= ?", (newest - self.max_stored,))

    def newest(self, step: int | None = None, limit: int = 20) -> list[dict[str, Any]]:
        """The texts of the last steps, or of one; of these the newest, in the order they came.

        Keys: attempt, step, rank, time (seconds since the epoch), prompt, completion, and the
        record's numbers: rewards (name to number; "" is the only one's), length and prompt_length
        (characters before any cut), advantage and
        finished (true or false), none where they were not told.
        """
        rows = self.connection.execute(
            _NEWEST_SAMPLES_SQL, (step, max(0, min(limit, MAX_SAMPLES_RETURNED)))
        ).fetchall()
        return [_sample_to_dict(row) for row in reversed(rows)]

    def file_marks(self) -> dict[str, str]:
        """Files of samples that were read: path to the mark of the state they were in."""
        return dict(self.connection.execute("select path, mark from sample_file"))

    def store_file_marks(self, files: Mapping[str, str]) -> None:
        """Remember that these were read."""
        self.connection.executemany(
            "insert or replace into sample_file(path, mark) values(?, ?)", files.items()
        )


def newest_samples(database_path: Path, step: int | None, limit: int) -> list[dict[str, Any]]:
    """As `Samples.newest`, through a connection of its own to that database, from any thread."""
    with closing(database.connect(database_path)) as connection:
        return SampleStore(connection).newest(step, limit)


def _sample_to_dict(row: tuple[Any, ...]) -> dict[str, Any]:
    attempt, step, rank, time, vals, facts = row
    values, texts = json.loads(vals), json.loads(facts)
    finished = values.get("finished")
    return {
        "attempt": attempt,
        "step": step,
        "rank": rank,
        "time": time,
        "prompt": texts.get("prompt", ""),
        "completion": texts.get("completion", ""),
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
