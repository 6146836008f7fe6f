"""The files of a directory that a command created or changed."""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import NamedTuple

MAX_ENTRIES = 20_000
"""Files and directories that are looked at; those of the upper levels first."""
_SKIPPED_NAMES = frozenset({".git", "__pycache__"})


class FileState(NamedTuple):
    """What differs once a file is written: its inode, size in bytes and time of change in ns."""

    number: int
    size: int
    changed_at: int


class FileScan(NamedTuple):
    """The files below a directory by path, relative to it; not all of them if it is not `complete`.

    Symbolic links are not followed. What `.git` and `__pycache__` hold is left out.
    """

    files: dict[str, FileState]
    complete: bool


def scan_files(directory: Path, streams: Iterable[int] = (1, 2)) -> FileScan:
    """The files below the directory, without those to which the file descriptors `streams` write.

    What cannot be read is left out.
    """
    own = {_identity(os.fstat(each)) for each in _open(streams)}
    files: dict[str, FileState] = {}
    folders, count = deque([""]), 0
    while folders:
        folder = folders.popleft()
        try:
            entries = sorted(os.scandir(directory / folder), key=lambda each: each.name)
        except OSError:
            continue
        for entry in entries:
            count += 1
            if count > MAX_ENTRIES:
                return FileScan(files, complete=False)
            if entry.name in _SKIPPED_NAMES:
                continue
            path = f"{folder}/{entry.name}" if folder else entry.name
            try:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(path)
                elif entry.is_file(follow_symlinks=False):
                    status = entry.stat(follow_symlinks=False)
                    if _identity(status) not in own:
                        files[path] = FileState(status.st_ino, status.st_size, status.st_ctime_ns)
            except OSError:
                continue
    return FileScan(files, complete=True)


def written_files(before: FileScan, after: FileScan) -> dict[str, int]:
    """Sizes in bytes of the files that were created or changed between two scans, by path.

    Of incomplete scans, only files that are in both.
    """
    return {
        path: state.size
        for path, state in after.files.items()
        if before.files.get(path, None if before.complete else state) != state
    }


def _identity(status: os.stat_result) -> tuple[int, int]:
    return status.st_dev, status.st_ino


def _open(descriptors: Iterable[int]) -> Iterator[int]:
    """Those that are open."""
    for each in descriptors:
        try:
            os.fstat(each)
        except OSError:
            continue
        yield each
