"""The run directory of an agent: in the home directory, else in shared memory."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from sentinel.transport.launch_status import LAUNCH_STATUS_NAME, read_launch_status
from sentinel.transport.paths import (
    REMOVED_SUFFIX,
    START_LOG_NAME,
    fallback_run_dir,
    ring_dir,
    run_dir,
)


def remove_shared_files(run: str) -> None:
    """Remove what an ended run leaves in shared memory, but for what the home directory lacks.

    The marks of removed rings are moved there. Raises OSError if that is not possible.
    """
    fallback, directory = fallback_run_dir(run), ring_dir(run)
    marks = sorted(fallback.glob(f"*{REMOVED_SUFFIX}"))
    home = run_dir(run) if marks else Path()
    for mark in marks:
        (home / mark.name).touch(mode=0o600)
        mark.unlink()
    launch = read_launch_status(run)
    if launch is None or not launch.launcher.is_alive():
        (directory / LAUNCH_STATUS_NAME).unlink(missing_ok=True)
    (directory / START_LOG_NAME).unlink(missing_ok=True)
    for each in (fallback, directory):
        # Not empty while another agent has files in it.
        with suppress(OSError):
            each.rmdir()
