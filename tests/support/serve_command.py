"""`sentinel serve` over a home or a folder of logs."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import requests
from programs import free_port
from support.rank_processes import until

TIMEOUT_SECONDS = 240.0
"""Timeout of what takes a second on an idle machine."""


@contextmanager
def serve_command(folder: Path, *arguments: str, **environ: str) -> Iterator[str]:
    """Start `sentinel serve FOLDER`; yields its URL without a slash at the end."""
    port = free_port()
    command = [*(sys.executable, "-m", "sentinel", "serve", str(folder)), *("--port", str(port))]
    own = {
        "SENTINEL_HOME": str(folder),
        "SENTINEL_RUNTIME_DIR": str(folder / "shm"),
        "XDG_CACHE_HOME": str(folder / "cache"),
    }
    with (folder / "serve.log").open("wb") as output:
        process = subprocess.Popen(
            [*command, *arguments], env=os.environ | own | environ, stdout=output, stderr=output
        )
    url = f"http://127.0.0.1:{port}"

    def answers() -> bool:
        assert process.poll() is None, (folder / "serve.log").read_text()
        try:
            return requests.get(f"{url}/-/healthy", timeout=TIMEOUT_SECONDS).ok
        except requests.ConnectionError:
            return False

    try:
        until(answers, TIMEOUT_SECONDS, "sentinel serve answers")
        yield url
    finally:
        process.terminate()
        process.wait(TIMEOUT_SECONDS)
