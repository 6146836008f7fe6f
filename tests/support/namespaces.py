"""Commands that run a program in namespaces of its own, and whether this machine permits that."""

from __future__ import annotations

import os
import shutil
import subprocess
from functools import cache

import pytest

NOBODY = 54321
"""A user without an entry in the password database."""


@cache
def _can_run(command: tuple[str, ...]) -> bool:
    done = subprocess.run([*command, "true"], capture_output=True, check=False)
    return done.returncode == 0


def unshared(*options: str, needs_root: bool = False) -> list[str]:
    """`unshare` with these options, in a namespace of users without root.

    Skips the test where that is not permitted.
    """
    unshare = shutil.which("unshare")
    as_user = [] if os.geteuid() == 0 else ["--user", "--map-root-user"]
    command = [unshare or "unshare", *as_user, *options]
    if unshare is None or (needs_root and os.geteuid()) or not _can_run((*command,)):
        pytest.skip(f"namespaces cannot be created here: unshare {' '.join(options)}")
    return command


def other_user() -> tuple[list[str], int]:
    """Command prefix and id of a user without a name that may read every file, as root.

    Skips the test without the permission for that.
    """
    setpriv = shutil.which("setpriv")
    if os.geteuid() or setpriv is None:
        pytest.skip("another user needs root and setpriv")
    ids = [f"--reuid={NOBODY}", f"--regid={NOBODY}", "--clear-groups"]
    caps = [f"--{kind}-caps=+dac_read_search" for kind in ("inh", "ambient")]
    return [setpriv, *ids, *caps], NOBODY


def shell(script: str) -> list[str]:
    """A command prefix: the shell commands, then the program in place of the shell."""
    return ["/bin/sh", "-c", f'{script}; exec "$@"', "sh"]
