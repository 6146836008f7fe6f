"""Lock: whether a run is served, asked of the kernel, which forgets a lock as its owner dies."""

from __future__ import annotations

import fcntl
import os
from pathlib import Path


def is_lock_held(path: Path) -> bool:
    """Whether a living process holds that lock file. Never waits; a missing file is not held."""
    try:
        number = os.open(path, os.O_RDWR | os.O_CLOEXEC | os.O_NOFOLLOW)
    except OSError:
        return False
    try:
        fcntl.flock(number, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    finally:
        os.close(number)
    return False
