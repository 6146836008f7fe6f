"""Images and histograms that a run logged; an image may stay in the file that it was read from."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass
from pathlib import Path
from typing import Any

MAX_MEDIA_ROWS = 5000
MAX_MEDIA_BYTES = 32 << 20
"""Limits of what is stored; above one of them the oldest are deleted."""
ROWS_BETWEEN_CHECKS = 64

_OLDEST_SQL = "select id, length(body) from media order by id"


@dataclass
class MediaStore:
    """Rows of the table `media`, in the caller's transaction."""

    connection: sqlite3.Connection
    max_rows: int = MAX_MEDIA_ROWS
    max_bytes: int = MAX_MEDIA_BYTES
    _added: int = 0

    def add(  # noqa: PLR0913 - the columns of a row
        self,
        name: str,
        step: int,
        time: float,
        kind: str,
        content_type: str,
        *,
        width: int | None = None,
        height: int | None = None,
        body: bytes | None = None,
        source: Path | None = None,
        offset: int = 0,
        length: int = 0,
    ) -> None:
        """Store one image or histogram (`kind`): its `body`, or where in the file `source` it is.

        The body of a histogram is JSON. `time` is in seconds since the epoch.
        """
        self.connection.execute(
            "insert into media(name, step, time, kind, content_type, width, height, source,"
            " offset, length, body) values(?, ?, ?, ?, ?, ?, ?, ?, ?, ?, ?)",
            (
                name,
                step,
                time,
                kind,
                content_type,
                width,
                height,
                None if source is None else str(source),
                offset,
                length,
                body,
            ),
        )
        self._added += 1
        if self._added % ROWS_BETWEEN_CHECKS == 0:
            self.delete_oldest()

    def delete_oldest(self) -> None:
        """Delete the oldest rows above the limits."""
        rows = self.connection.execute(_OLDEST_SQL).fetchall()
        excess = sum(size or 0 for _, size in rows) - self.max_bytes
        last = 0
        for at, (number, size) in enumerate(rows):
            if len(rows) - at <= self.max_rows and excess <= 0:
                break
            last, excess = number, excess - (size or 0)
        self.connection.execute("delete from media where id <= ?", [last])


def newest_media(
    connection: sqlite3.Connection, kind: str | None, limit: int
) -> list[dict[str, Any]]:
    """The newest images and histograms, or those of one kind, without their bodies; newest first.

    Keys: id, name, step, time (seconds since the epoch), kind, content_type, width, height.
    """
    names = ("id", "name", "step", "time", "kind", "content_type", "width", "height")
    rows = connection.execute(
        f"select {', '.join(names)} from media where (?1 is null or kind = ?1)"  # noqa: S608
        " order by id desc limit ?2",
        (kind, limit),
    )
    return [dict(zip(names, row, strict=True)) for row in rows]


def media_body(connection: sqlite3.Connection, number: int) -> tuple[str, bytes]:
    """Content type and content of the row with that id.

    Raises KeyError if there is no such row, and OSError if the file with it cannot be read any
    more.
    """
    row = connection.execute(
        "select content_type, body, source, offset, length from media where id = ?", [number]
    ).fetchone()
    if row is None:
        raise KeyError(number)
    content_type, body, source, offset, length = row
    if body is None:
        with Path(source).open("rb") as file:
            file.seek(offset)
            body = file.read(length)
        if len(body) < length:
            raise FileNotFoundError(f"{source} is shorter than it was")
    return str(content_type), bytes(body)
