"""Images and histograms that a run logged; an image may stay in the file that it was read from."""

from __future__ import annotations

import sqlite3
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from sentinel.readers.image_bytes import identify_image, read_image

MAX_MEDIA_ROWS = 5000
MAX_MEDIA_BYTES = 32 << 20
"""Limits of what is stored; above one of them the oldest are deleted."""
MIN_ROWS_PER_NAME = 8
"""Rows of one name that are stored however many names there are."""
ROWS_BETWEEN_CHECKS = 64

_OLDEST_SQL = "select id, length(body) from media order by id"
_THIN_SQL = """
delete from media where id in (
    select id from (
        select id, row_number() over (order by id) as number from media
        where kind = ?1 and name = ?2 order by id limit ?3)
    where number % 2 = 0)
"""


@dataclass
class MediaStore:
    """Rows of the table `media`, in the caller's transaction."""

    connection: sqlite3.Connection
    max_rows: int = MAX_MEDIA_ROWS
    max_bytes: int = MAX_MEDIA_BYTES
    _added: int = 0
    _counts: dict[tuple[str, str], int] = field(default_factory=dict)
    """Rows by kind and name."""

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
        self._thin(kind, name)
        self._added += 1
        if self._added % ROWS_BETWEEN_CHECKS == 0:
            self.delete_oldest()

    def _thin(self, kind: str, name: str) -> None:
        """Keep the past of each name: delete every second one of the older half of too many."""
        self._counts[kind, name] = count = self._counts.get((kind, name), 0) + 1
        if count > max(MIN_ROWS_PER_NAME, self.max_rows // len(self._counts)):
            deleted = self.connection.execute(_THIN_SQL, (kind, name, count // 2)).rowcount
            self._counts[kind, name] -= deleted

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

    The type of an image is that of its bytes. Raises KeyError if there is no such row, and
    OSError or ValueError if the file with it cannot be read any more, or holds something else.
    """
    row = connection.execute(
        "select kind, body, source, offset, length from media where id = ?", [number]
    ).fetchone()
    if row is None:
        raise KeyError(number)
    kind, body, source, offset, length = row
    if kind == "histogram":
        return "application/json", bytes(body)
    data = read_image(Path(source), offset, length) if body is None else bytes(body)
    info = identify_image(data)
    if info is None:
        raise ValueError("it is no image that is shown")
    return info.content_type, data
