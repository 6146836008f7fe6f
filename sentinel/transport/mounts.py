"""Filesystem of a path, found without an access to it, which a file server could block.

The kernel's table of mounts gives the type of each filesystem. Network and FUSE filesystems can
hang for as long as their server does; a local one returns an error.
"""

from __future__ import annotations

import os
import re
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from typing import NamedTuple

_MOUNT_TABLE = Path("/proc/self/mountinfo")
_REMOTE_TYPES = frozenset(
    {
        "afs", "autofs", "beegfs", "ceph", "cifs", "coda", "fuse", "glusterfs", "gpfs", "lustre",
        "ncpfs", "nfs", "nfs4", "ocfs2", "orangefs", "panfs", "pvfs2", "smb3", "smbfs", "wekafs",
    }
)  # fmt: skip
_LOCAL_FUSE_TYPES = frozenset({"fuse.fuse-overlayfs", "fuse.lxcfs", "fuse.portal"})
_OCTAL_ESCAPE = re.compile(r"\\([0-7]{3})")
_MAX_LINKS = 40


class Mount(NamedTuple):
    """One mounted filesystem: its number in this mount namespace, where it is, and its type."""

    number: int
    point: str
    type: str

    @property
    def is_remote(self) -> bool:
        """Whether a server answers accesses to it, in another process or on another machine."""
        if self.type.startswith("fuse."):
            return self.type not in _LOCAL_FUSE_TYPES
        return self.type in _REMOTE_TYPES

    def contains(self, path: str) -> bool:
        """Whether `path` is at or below the mount point."""
        return path == self.point or path.startswith(self.point.rstrip("/") + "/")


_UNKNOWN = Mount(-1, "/", "")


def find_mount(path: Path) -> Mount:
    """The filesystem that `path` is on, or would be on; follows links. Never waits for a server."""
    mounts = _read_mounts()
    current, links = "/", 0
    parts = [*reversed(path.absolute().parts[1:])]
    while parts:
        part = parts.pop()
        candidate = os.path.normpath(os.path.join(current, part))  # noqa: PTH118 - text only
        if _covering_mount(mounts, candidate).is_remote:
            # Links below are not read, but a local filesystem may be mounted there.
            rest = os.path.normpath(os.path.join(candidate, *reversed(parts)))  # noqa: PTH118
            mount = _covering_mount(mounts, rest)
            if mount.is_remote:
                return mount
            current = mount.point
            parts = [*reversed(Path(rest).relative_to(mount.point).parts)]
            continue
        try:
            target = Path(os.readlink(candidate))  # noqa: PTH115 - as above
        except OSError:
            current = candidate
            continue
        links += 1
        if links > _MAX_LINKS:
            break
        if target.is_absolute():
            current = "/"
        parts.extend(reversed([each for each in target.parts if each != "/"]))
    return _covering_mount(mounts, current)


def _covering_mount(mounts: Sequence[Mount], path: str) -> Mount:
    """The filesystem at `path`: the deepest mount point; of several on one point the newest."""
    found = _UNKNOWN
    for mount in mounts:
        if mount.contains(path) and len(mount.point) >= len(found.point):
            found = mount
    return found


def _read_mounts() -> Sequence[Mount]:
    """All mounts, oldest first; empty where the kernel has no such table."""
    try:
        return _parse_mounts(_MOUNT_TABLE.read_text(errors="surrogateescape"))
    except OSError:
        return ()


# An agent reads the table several times a second, and it hardly ever changes.
@lru_cache(maxsize=1)
def _parse_mounts(table: str) -> Sequence[Mount]:
    parsed = map(_parse_mount, table.splitlines())
    return tuple(mount for mount in parsed if mount is not None)


def _parse_mount(line: str) -> Mount | None:
    r"""A line of `/proc/self/mountinfo`; see proc(5).

    >>> _parse_mount(r"36 35 98:0 /mnt1 /home/my\040files rw shared:1 - nfs4 server:/x rw")
    Mount(number=36, point='/home/my files', type='nfs4')
    """
    fields, _, rest = line.partition(" - ")
    try:
        number, _, _, _, point, *_ = fields.split(" ")
        unescaped = _OCTAL_ESCAPE.sub(lambda match: chr(int(match[1], 8)), point)
        return Mount(int(number), unescaped, rest.split(" ")[0])
    except ValueError:
        return None
