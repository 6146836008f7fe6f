"""One program with its input, run without a shell and ended at its deadline with all it started."""

from __future__ import annotations

import os
import selectors
import signal
import subprocess
import time
from collections.abc import Mapping
from contextlib import suppress
from typing import IO, cast

from sentinel.model.delivery import ProcessInput, Response
from sentinel.notify.transports.errors import DeadlineExceededError

MAX_OUTPUT_BYTES = 65536
"""Bytes of standard output that are kept; the rest is read and dropped."""

_POLL_SECONDS = 0.02
_READ_BYTES = 65536
_PASSED_VARIABLES = frozenset(
    f"SENTINEL_{name}" for name in ("HOME", "RUNTIME_DIR", "RUN_ID", "CONFIG")
)


def send(call: ProcessInput, *, deadline: float) -> Response:
    """Run the program once; return its exit status and standard output.

    `deadline` and the time-out of the call, the shorter one, end it in seconds. A program ended by
    a signal has the negative number of the signal as its status. Never raises OSError.
    """
    try:
        return run(call, min(deadline, call.timeout), environment(os.environ))
    except OSError as error:
        return Response(error=type(error).__name__, protocol="exit status")


def run(call: ProcessInput, timeout: float, environ: Mapping[str, str]) -> Response:
    """As `send`, with the variables `environ`. Raises OSError if the program cannot be started."""
    ends_at = time.monotonic() + timeout
    # A file, because a program that reads nothing would block a pipe; in memory, because a
    # container may have no directory that it can write.
    with os.fdopen(os.memfd_create("notification"), "w+b") as stdin:
        stdin.write(call.stdin)
        stdin.seek(0)
        process = subprocess.Popen(  # noqa: S603 - the program is a setting, and there is no shell
            call.arguments,
            stdin=stdin,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env=environ,
            start_new_session=True,
        )
    with process:
        output = _read_output(process, ends_at)
        if output is None:
            return Response(error=DeadlineExceededError.__name__, protocol="exit status")
        return Response(
            process.returncode, output.decode("utf-8", "replace"), protocol="exit status"
        )


def environment(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables for the program: without settings of sentinel, which may be secret."""
    return {
        name: value
        for name, value in environ.items()
        if not name.startswith("SENTINEL_") or name in _PASSED_VARIABLES
    }


def _read_output(process: subprocess.Popen[bytes], ends_at: float) -> bytes | None:
    """The output until the program ends; None if it was ended at its deadline."""
    output = bytearray()
    with selectors.DefaultSelector() as selector:
        selector.register(cast("IO[bytes]", process.stdout), selectors.EVENT_READ)
        # Not until the end of the output: a process that it started may keep the pipe open.
        while process.poll() is None:
            if time.monotonic() >= ends_at:
                _kill_group(process)
                return None
            _read_available(selector, output, _POLL_SECONDS)
        while len(output) < MAX_OUTPUT_BYTES and _read_available(selector, output, 0.0):
            continue
    return bytes(output)


def _read_available(
    selector: selectors.BaseSelector, output: bytearray, max_wait_seconds: float
) -> bool:
    """Append what can be read now, or else within that time; whether more may follow."""
    if not selector.get_map():
        time.sleep(max_wait_seconds)
        return False
    for key, _ in selector.select(max_wait_seconds):
        piece = os.read(key.fd, _READ_BYTES)
        output += piece[: MAX_OUTPUT_BYTES - len(output)]
        if piece:
            return True
        selector.unregister(key.fileobj)
    return False


def _kill_group(process: subprocess.Popen[bytes]) -> None:
    with suppress(ProcessLookupError):
        os.killpg(process.pid, signal.SIGKILL)
    process.wait()
