"""Real programs under test: found on PATH, started on free ports, waited for, ended by their id."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TypeVar

import pytest

Answer = TypeVar("Answer")


def find(*names: str) -> str:
    """Path of the first of these programs; skips the test where none is, unless it must be."""
    for name in names:
        if path := shutil.which(name):
            return path
    missing = f"{' or '.join(names)} is not on PATH (Debian: prometheus prometheus-alertmanager)"
    if os.environ.get("SENTINEL_REQUIRE_STACK") == "1":
        pytest.fail(missing, pytrace=False)
    pytest.skip(missing)


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def wait_for(what: str, ask: Callable[[], Answer], seconds: float = 240.0) -> Answer:
    """Ask until the answer is true; fails after `seconds`, naming what did not come."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if answer := ask():
            return answer
        time.sleep(0.05)
    pytest.fail(f"{what} did not come within {seconds:g} s")


@contextmanager
def running(log: Path, *command: str, **options) -> Iterator[subprocess.Popen]:
    """The program while it runs, in a session of its own, its output in `log`."""
    with log.open("wb") as output:
        process = subprocess.Popen(
            command, stdout=output, stderr=subprocess.STDOUT, start_new_session=True, **options
        )
    try:
        yield process
    finally:
        process.terminate()
        try:
            process.wait(timeout=60)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=60)


def told(*command: str, text: str | None = None, cwd: Path | None = None):
    """What a program that ends by itself said; see `returncode` and `stdout`."""
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
