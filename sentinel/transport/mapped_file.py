"""Files that processes of one node map together, created so that no reader sees half of one."""

from __future__ import annotations

import mmap
import os
from pathlib import Path


def create_atomically(path: Path, size: int, header: bytes) -> mmap.mmap:
    """Create a file of `size` bytes that starts with `header`, and map it.

    The file appears at `path` only when it is complete, with mode 0600. The mapping is not passed
    on to forked children. Raises FileExistsError if `path` exists, OSError if there is no space.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}")
    flags = os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC
    descriptor = os.open(temporary, flags, 0o600)
    try:
        # Reserves the space: a write to a page that a full tmpfs cannot provide raises SIGBUS.
        os.posix_fallocate(descriptor, 0, size)
        mapped = mmap.mmap(descriptor, size)
        mapped.madvise(mmap.MADV_DONTFORK)
        mapped[: len(header)] = header
        os.link(temporary, path)
    finally:
        os.close(descriptor)
        temporary.unlink()
    return mapped
