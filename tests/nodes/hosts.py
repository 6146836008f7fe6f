"""Hosts of a test: several nodes on this one machine, each with a sentinel home of its own.

On loopback they share the machine's name and its network, which anybody may have. As network
namespaces they have names and addresses of their own, joined by a switch whose links can be cut;
that takes root, and is in `namespaces.py`.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.error import URLError
from urllib.request import urlopen
from uuid import uuid4

import psutil
from support.rank_processes import until

HERE = Path(__file__).parent
PATIENCE = 240.0
"""Seconds a busy machine may take for what an idle one does in a few."""

CALM = {
    "SENTINEL_LINGER_SECONDS": "0",
    "SENTINEL_NODE_POLL_SECONDS": "0",
    # Trainings stand still here until a test lets them go on.
    "SENTINEL_DETECTORS__RUN_STALLED__FLOOR": "3600",
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""Settings of every node, unless a test says otherwise."""

SHIFTED = """
import time
def shifted(real=time.time):
    return real() + {seconds}
def shifted_ns(real=time.time_ns):
    return real() + int({seconds} * 1e9)
time.time, time.time_ns = shifted, shifted_ns
"""

MARK = "HOST_UNDER_TEST"
"""Variable that every process of a host inherits, so that none is missed and none is mistaken."""


class Host:
    """One node: where its processes run, what they are told, and how they are ended.

    `prefix` are the words that make a command line run there; `within` calls a function as if it
    were a process of that node, for sockets.
    """

    prefix: tuple[str, ...] = ()

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name, self.address, self.folder = name, address, folder
        self.mark = f"{name}-{uuid4().hex}"
        self.settings: dict[str, str] = {}
        self._begun: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def environ(self) -> dict[str, str]:
        """What its processes are told: nothing of a launcher around the tests."""
        own = {
            MARK: self.mark,
            "SENTINEL_HOME": str(self.home),
            "SENTINEL_RUNTIME_DIR": str(self.folder / "shm"),
            "TMPDIR": str(self.folder),
        }
        return {**os.environ, **CALM, **own, **self.settings}

    def start(self, *words: Any, **more: Any) -> subprocess.Popen[bytes]:
        """A process of this node; its output goes to `said`. `more` are further variables."""
        with (self.folder / "said").open("ab") as said:
            begun = subprocess.Popen(
                [*self.prefix, *map(str, words)],
                env={**self.environ, **{key: str(value) for key, value in more.items()}},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=said,
                stderr=said,
            )
        self._begun.append(begun)
        return begun

    def python(self, *words: Any, **more: Any) -> subprocess.Popen[bytes]:
        """A Python of this node."""
        return self.start(sys.executable, *words, **more)

    def told(self, *words: Any) -> str:
        """What a Python of this node prints, however it ends."""
        command = [*self.prefix, sys.executable, *map(str, words)]
        done = subprocess.run(
            command, env=self.environ, cwd=self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=PATIENCE, check=False,
        )  # fmt: skip
        return done.stdout

    @property
    def said(self) -> str:
        """All that its processes wrote, to show with what failed."""
        return (self.folder / "said").read_text(errors="replace")

    def shift_clock(self, seconds: float) -> None:
        """Have every process that is begun here from now on take it to be so much later."""
        folder = self.folder / "clock"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(SHIFTED.format(seconds=seconds))
        self.settings["PYTHONPATH"] = f"{folder}:{os.environ['PYTHONPATH']}"

    def within(self, call: Callable[[], Any]) -> Any:
        """What `call` gives on this node's network."""
        return call()

    def fetch(self, url: str) -> str:
        """What an HTTP server on this node answers; empty where none does."""

        def ask() -> str:
            try:
                with urlopen(url, timeout=10.0) as answer:
                    return str(answer.read().decode())
            except (URLError, ConnectionError, TimeoutError):
                return ""

        return str(self.within(ask))

    def processes(self, word: str = "") -> list[psutil.Process]:
        """All that runs here, as far as `word` is among the words of its command line."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get(MARK) == self.mark
                alive = ours and process.status() != psutil.STATUS_ZOMBIE
                if alive and (not word or word in process.cmdline()):
                    found.append(process)
        return found

    def agents(self) -> list[psutil.Process]:
        """Agents that run here."""
        return self.processes("agent")

    def kill(self, word: str = "") -> None:
        """All of that at once, as a power cut does: until nothing of it is left."""

        def none_left() -> bool:
            left = self.processes(word)
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            return not left

        until(none_left, PATIENCE, f"{self.name} is dead")

    def runs(self) -> list[Path]:
        """Directories of the runs its agents served, those first that were there first."""
        found = (self.home / "runs").glob("*/sentinel.db")
        return [path.parent for path in sorted(found, key=lambda path: path.stat().st_ctime_ns)]

    def run(self) -> Path:
        """Directory of the only run there is, once its agent has made it."""
        until(self.runs, PATIENCE, f"an agent works on {self.name}")
        (run,) = self.runs()
        return run

    def url(self) -> str:
        """Where the agent of the only run listens, once it does."""
        told = self.run() / "agent.json"
        until(told.exists, PATIENCE, f"the agent of {self.name} listens")
        return str(json.loads(told.read_text())["url"])

    def close(self) -> None:
        """End all that runs here."""
        self.kill()
        for process in self._begun:
            process.wait(PATIENCE)


class Site:
    """Hosts made for one test, closed with it."""

    address = "127.0.0.1"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: list[Host] = []

    def host(self) -> Host:
        """One more."""
        name = f"node{len(self.hosts)}"
        made = self.made(name, self.folder / name)
        self.hosts.append(made)
        return made

    def made(self, name: str, folder: Path) -> Host:
        return Host(name, self.address, folder)

    def of(self, count: int) -> list[Host]:
        """So many hosts; the first is where rank 0 will be."""
        return [self.host() for _ in range(count)]

    def close(self) -> None:
        """End and remove whatever was made, also where a part of that fails."""
        for host in self.hosts:
            host.close()
