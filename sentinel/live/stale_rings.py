"""Leftovers: rings that nobody writes any more and nobody came to read.

An agent removes the rings of the run it served. Where none could be started, they would fill the
shared memory of the machine; the next agent removes them once they are old.
"""

from __future__ import annotations

from pathlib import Path

from sentinel.transport.command_page import tidy
from sentinel.transport.paths import shared_rings
from sentinel.transport.ring import RingError, RingReader

OLD = 24 * 3600.0
"""Seconds since a rank's last step, after which its ring is nobody's."""


def sweep(now: float) -> list[Path]:
    """Remove every old ring of this user's whose process is gone; `now` is in seconds since the
    epoch. Returns what was removed.
    """
    removed = [path for path in shared_rings() if _abandoned(path, now)]
    for path in removed:
        path.unlink(missing_ok=True)
        tidy(path.parent)
    return removed


def _abandoned(path: Path, now: float) -> bool:
    try:
        reader = RingReader(path)
    except (RingError, OSError):
        return False
    try:
        header = reader.header()
    finally:
        reader.close()
    return now - header.last_time > OLD and not header.process.alive()
