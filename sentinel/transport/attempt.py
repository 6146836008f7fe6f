"""The attempt that a starting rank belongs to, from the rings that earlier ranks left behind."""

from __future__ import annotations

from pathlib import Path

from sentinel.transport import paths
from sentinel.transport.process import Process
from sentinel.transport.ring_layout import HEADER_SIZE, parse_header


def first_free_attempt(
    run: str, rank: int, start: int = 0, *, local_world_size: int = 1, world_size: int = 1
) -> int:
    """The first attempt from `start` on in which this rank has no ring yet.

    An attempt is over once its ranks on this node are gone, if there were `local_world_size` of
    them or their world had another size: an elastic restart may give this node other ranks, or
    more of them.
    """
    rings = paths.list_rings(run)
    used_names = {path.name for path in rings} | paths.removed_ring_names(run)
    attempt = max([start, *map(paths.attempt_from_ring_name, used_names)])
    current = [name for name in used_names if paths.attempt_from_ring_name(name) == attempt]
    if paths.ring_name(attempt, rank) in current:
        return attempt + 1
    writers = [_ring_writer(path) for path in rings if path.name in current]
    complete = len(current) >= local_world_size or any(size != world_size for _, size in writers)
    all_exited = not any(process.is_alive() for process, _ in writers)
    return attempt + 1 if current and complete and all_exited else attempt


def _ring_writer(ring: Path) -> tuple[Process, int]:
    """The process that writes a ring, and the size of its world."""
    try:
        with ring.open("rb") as file:
            header = parse_header(file.read(HEADER_SIZE))
    except (OSError, ValueError):
        # The ring is still being created: its writer is alive, and nothing else is known.
        return Process.current(), 0
    return header.process, header.identity.world_size
