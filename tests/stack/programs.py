"""External programs: found on PATH, started on free ports, and terminated."""

from __future__ import annotations

import os
import shutil
import signal
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import TypeVar

import pytest
import requests
from support.rank_processes import poll_interval

ValueT = TypeVar("ValueT")
REQUIRED = os.environ.get("SENTINEL_REQUIRE_STACK") == "1"
"""Read at import, since tests do not inherit SENTINEL_*."""


def find(*names: str) -> str:
    """Path of the first of these programs that exists; skips the test if none does.

    With SENTINEL_REQUIRE_STACK=1 the test fails instead.
    """
    for name in names:
        if path := shutil.which(name):
            return path
    missing = f"{' or '.join(names)} is not on PATH; scripts/system_programs.py installs it"
    if REQUIRED:
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(description: str, poll: Callable[[], ValueT], seconds: float = 240.0) -> ValueT:
    """Call `poll` until its value is true, and return that; fails after `seconds`."""
    deadline = time.monotonic() + seconds
    while (began := time.monotonic()) < deadline:
        if value := poll():
            return value
        time.sleep(poll_interval(time.monotonic() - began))
    pytest.fail(f"{description}: not within {seconds:g} s")


def is_ready(url: str) -> bool:
    """Whether a Prometheus or an Alertmanager answers."""
    with suppress(requests.ConnectionError, requests.Timeout):
        return requests.get(f"{url}/-/ready", timeout=240).ok
    return False


@contextmanager
def running(log: Path, *command: str, **options) -> Iterator[subprocess.Popen]:
    """Run the program in its own session during the context, with its output in `log`."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, **options
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=240)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=240)


class Restartable:
    """Runs a program as `running` does, until `end`; then it may be started again."""

    def __init__(self, log: Path, *command: str) -> None:
        self._log, self._command = log, command
        self.start()

    def start(self) -> None:
        self._context = ExitStack()
        self.process = self._context.enter_context(running(self._log, *self._command))

    def end(self, number: int = signal.SIGTERM) -> None:
        self.process.send_signal(number)
        self._context.close()


def run_program(*command: str, text: str | None = None, cwd: Path | None = None):
    """Run a program to its end; see `returncode` and `stdout`."""
    return subprocess.run(
        command,
        input=text,
        cwd=cwd,
        text=True,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        timeout=240,
        check=False,
    )
