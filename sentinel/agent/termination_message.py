"""Writes how a training ended to the termination message of its container.

Kubernetes shows this file in the state of a Pod (`kubectl describe pod`) once the container ends,
up to 4 KiB. `sentinel run` writes the exit of its command. The agent replaces that by the failure
that it reports; one in another container has a file of its own, and passes the failure on in shared
memory. What another program wrote stays.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from time import monotonic, sleep

from sentinel.transport.launch_status import LaunchStatus
from sentinel.transport.paths import SETTLED_NAME, is_agent_running, shared_run_dir

VARIABLE = "SENTINEL_TERMINATION_LOG"
"""Environment variable with the path of the file; empty for none."""
MARK = "sentinel: "
"""Beginning of the messages of sentinel."""
STOPPED_TEXT = (
    "The signal came from outside the training, as when its Pod is deleted, evicted or preempted: "
    "see the condition DisruptionTarget of the Pod."
)
SETTLE_SECONDS = 10.0
"""How long `sentinel run` waits for an agent of another container to report the failure."""
_DEFAULT_PATH = Path("/dev/termination-log")
_MAX_BYTES = 2048
_POLL_SECONDS = 0.05


def termination_log(environ: Mapping[str, str]) -> Path | None:
    """The file of this container; by default that of Kubernetes, and None elsewhere."""
    chosen = environ.get(VARIABLE)
    if chosen is None and "KUBERNETES_SERVICE_HOST" in environ:
        return _DEFAULT_PATH
    return Path(chosen) if chosen else None


def exit_text(launch: LaunchStatus) -> str:
    """How the command of `sentinel run` ended, as sentences; empty if it did not fail."""
    attributes = launch.exit_attributes
    if launch.stop_signal and launch.exit_code:
        return f"The command was ended by {launch.stop_signal}. {STOPPED_TEXT}"
    if not launch.has_failed:
        return ""
    if "signal" in attributes:
        return f"The command was killed by {attributes['signal']}."
    return f"The command exited with code {attributes['exit_code']}."


def report_exit(launch: LaunchStatus, path: Path, *, is_agent_apart: bool) -> None:
    """Write how the command ended, unless the agent wrote more. After success nothing is left.

    Waits for the report of an agent that is apart.
    """
    text = exit_text(launch)
    write_message(path, text, replaces=not text)
    directory = shared_run_dir(launch.run)
    deadline = monotonic() + (SETTLE_SECONDS if text and is_agent_apart else 0.0)
    while monotonic() < deadline and is_agent_running(directory):
        if failure := _settled_text(directory / SETTLED_NAME, launch.started_at):
            write_message(path, failure)
            return
        sleep(_POLL_SECONDS)


def write_message(path: Path, text: str, *, replaces: bool = True) -> None:
    """Write this text as the message, or none if it is empty; no error is raised.

    A message of sentinel stays unless `replaces`.
    """
    former = (b"", MARK.encode()) if replaces else (b"",)
    # The file is a mount of its own, so that it cannot be replaced by another one.
    with suppress(OSError):
        descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_NONBLOCK | os.O_CLOEXEC, 0o600)
        try:
            is_file = stat.S_ISREG(os.fstat(descriptor).st_mode)
            if is_file and os.read(descriptor, len(MARK)) in former:
                os.ftruncate(descriptor, 0)
                os.pwrite(descriptor, f"{MARK}{text}\n".encode()[:_MAX_BYTES] if text else b"", 0)
        finally:
            os.close(descriptor)


def _settled_text(path: Path, since: float) -> str:
    """The failure that the agent reported since then; empty if it did not."""
    try:
        return path.read_text() if path.stat().st_mtime >= since else ""
    except (OSError, ValueError):
        return ""
