"""Faults of the home directory: a disk or file server that does not respond, a small disk."""

from __future__ import annotations

import ctypes
import fcntl
import os
import shutil
import subprocess
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_LIBC = ctypes.CDLL(None, use_errno=True)
_MNT_DETACH = 2
_MS_RDONLY = 1


_FIFREEZE, _FITHAW = 0xC0045877, 0xC0045878


def can_freeze() -> bool:
    """Whether this process may mount a disk of its own and freeze it."""
    return can_mount() and Path("/dev/loop-control").exists() and bool(shutil.which("mkfs.ext4"))


@contextmanager
def disk(path: Path, image: Path) -> Iterator[None]:
    """Mounts an ext4 filesystem of 64 MiB, in the file `image`, at `path`."""
    with image.open("wb") as file:
        file.truncate(64 << 20)
    subprocess.run(["mkfs.ext4", "-q", image], check=True)
    subprocess.run(["mount", "-o", "loop", image, path], check=True)
    try:
        yield
    finally:
        _unmount(path)


@contextmanager
def frozen(path: Path) -> Iterator[None]:
    """Freezes the filesystem mounted at `path`: every write waits."""
    descriptor = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    try:
        fcntl.ioctl(descriptor, _FIFREEZE, 0)
        try:
            yield
        finally:
            fcntl.ioctl(descriptor, _FITHAW, 0)
    finally:
        os.close(descriptor)


@contextmanager
def stopped(path: Path) -> Iterator[None]:
    """What stands in for a frozen disk: see `stops` in `home_runs.AGENT`."""
    path.with_name("stopped").touch()
    try:
        yield
    finally:
        path.with_name("stopped").unlink()


def can_mount() -> bool:
    """Whether this process may mount a filesystem."""
    return os.geteuid() == 0 and Path("/dev/fuse").exists()


@contextmanager
def hanging_mount(path: Path) -> Iterator[None]:
    """Mounts a FUSE filesystem that no server answers; every access to `path` waits."""
    descriptor = os.open("/dev/fuse", os.O_RDWR | os.O_CLOEXEC)
    try:
        options = f"fd={descriptor},rootmode=40000,user_id=0,group_id=0"
        _mount(b"hanging", path, b"fuse", 0, options)
        try:
            yield
        finally:
            _unmount(path)
    finally:
        # Ends the waits.
        os.close(descriptor)


@contextmanager
def small_disk(path: Path, size: str, *, read_only: bool = False) -> Iterator[None]:
    """Mounts a tmpfs of that size at `path`."""
    _mount(b"tmpfs", path, b"tmpfs", _MS_RDONLY if read_only else 0, f"size={size},mode=700")
    try:
        yield
    finally:
        _unmount(path)


def _mount(source: bytes, path: Path, kind: bytes, flags: int, options: str) -> None:
    if _LIBC.mount(source, os.fsencode(path), kind, flags, options.encode()):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))


def _unmount(path: Path) -> None:
    if _LIBC.umount2(os.fsencode(path), _MNT_DETACH):
        number = ctypes.get_errno()
        raise OSError(number, os.strerror(number), str(path))
