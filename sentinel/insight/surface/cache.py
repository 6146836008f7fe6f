"""Evaluated points of loss surfaces on disk, so that a surface that was interrupted is continued.

One file a surface: lines of JSON arrays, coordinates first and the loss last. Lines are only ever
appended, each write begins with a line break, and a line that was cut off is no JSON array. So a
process may be killed at any moment, and several may write the same surface.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import time
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path

from sentinel.transport.paths import private_cache_dir

MAX_CACHE_BYTES = 64 << 20
"""Size of all surfaces above which the ones that were written longest ago are deleted."""
MAX_SURFACE_BYTES = 8 << 20
"""Size of one surface above which no more points are stored: over 100,000 of them."""
MIN_KEPT_SECONDS = 3600.0
"""A surface that was written within this time is not deleted: a process may be sampling it."""

_SUFFIX = ".points"
_SAFE_KEY = re.compile(r"[0-9A-Za-z_-]{1,100}")


class SurfaceCache:
    """The points of the surface `key`: a hash of the weights, the data and the directions.

    Nothing here raises for the state of the disk. If points cannot be stored, `problem` states why,
    and the surface is sampled without the cache. `folder` is by default
    `$XDG_CACHE_HOME/sentinel/surfaces`.
    """

    def __init__(self, key: str, folder: str | os.PathLike[str] | None = None) -> None:
        self.problem: str | None = None
        self.path: Path | None = None
        safe = key if _SAFE_KEY.fullmatch(key) else hashlib.sha256(key.encode()).hexdigest()
        try:
            directory = private_cache_dir("surfaces") if folder is None else Path(folder)
            directory.mkdir(mode=0o700, parents=True, exist_ok=True)
        except (OSError, RuntimeError) as error:
            self._stop(error)
            return
        self.path = directory / f"{safe}{_SUFFIX}"

    def known(self) -> dict[tuple[float, ...], float]:
        """The stored points and their losses; NaN and infinity are losses too."""
        found: dict[tuple[float, ...], float] = {}
        for line in self._lines():
            try:
                values = json.loads(line)
                *point, loss = map(float, values)
            except (ValueError, TypeError, OverflowError, RecursionError):
                continue
            if isinstance(values, list) and point:
                found[tuple(point)] = loss
        return found

    def append(self, points: Mapping[tuple[float, ...], float]) -> None:
        """Store evaluated points. Another process sees all of a call or a part, never a wrong one.

        Coordinates and losses are read back bit for bit.
        """
        if self.path is None or self.problem is not None or not points:
            return
        lines = (json.dumps([*map(float, point), float(loss)]) for point, loss in points.items())
        data = ("\n" + "\n".join(lines) + "\n").encode()
        try:
            flags = os.O_WRONLY | os.O_APPEND | os.O_CREAT | os.O_CLOEXEC | os.O_NOFOLLOW
            descriptor = os.open(self.path, flags, 0o600)
            try:
                size = os.fstat(descriptor).st_size
                if size == 0:
                    prune(self.path.parent, MAX_CACHE_BYTES, kept=self.path)
                if size + len(data) > MAX_SURFACE_BYTES:
                    raise OSError(f"the surface is larger than {MAX_SURFACE_BYTES >> 20} MiB")
                if os.write(descriptor, data) < len(data):
                    raise OSError("the disk is full")
            finally:
                os.close(descriptor)
        except OSError as error:
            self._stop(error)

    def _lines(self) -> Iterator[bytes]:
        if self.path is None:
            return
        try:
            with self.path.open("rb") as file:
                yield from file.read(MAX_SURFACE_BYTES).splitlines()
        except FileNotFoundError:
            return
        except OSError as error:
            self._stop(error)

    def _stop(self, error: Exception) -> None:
        reason = getattr(error, "strerror", None) or str(error)
        self.problem = f"Points of the surface are not stored in the cache: {reason}."


def prune(directory: Path, max_bytes: int, kept: Path | None = None) -> None:
    """Delete the surfaces that were written longest ago, until all take at most `max_bytes`.

    `kept` and surfaces written within the last hour stay.
    """
    files = []
    with suppress(OSError):
        for path in directory.glob(f"*{_SUFFIX}"):
            with suppress(OSError):
                status = path.stat()
                files.append((status.st_mtime, status.st_size, path))
    total, now = 0, time.time()
    for written, size, path in sorted(files, reverse=True):
        total += size
        if total > max_bytes and path != kept and now - written > MIN_KEPT_SECONDS:
            with suppress(OSError):
                path.unlink()
