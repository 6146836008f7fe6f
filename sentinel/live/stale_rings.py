"""Removal of stale rings: rings whose process is gone and which no agent has read.

An agent removes the rings of its own run. The rings of a run without an agent would fill the shared
memory of the machine, so the next agent removes them once they are old.
"""

from __future__ import annotations

from pathlib import Path

from sentinel.transport.command_page import remove_orphan_pages
from sentinel.transport.paths import list_shared_rings
from sentinel.transport.ring import RingError, RingReader

STALE_AFTER_SECONDS = 24 * 3600.0
"""Time since a rank's last step after which its ring is stale."""


def remove_stale_rings(now: float) -> list[Path]:
    """Remove this user's stale rings; `now` is in seconds since the epoch. Returns their paths."""
    removed = [path for path in list_shared_rings() if _is_stale(path, now)]
    for path in removed:
        path.unlink(missing_ok=True)
        remove_orphan_pages(path.parent)
    return removed


def _is_stale(path: Path, now: float) -> bool:
    try:
        reader = RingReader(path)
    except (RingError, OSError):
        return False
    try:
        header = reader.read_header()
    finally:
        reader.close()
    return now - header.last_time > STALE_AFTER_SECONDS and not header.process.is_alive()
