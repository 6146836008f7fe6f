"""Hosts of a test: several nodes on one machine, each with its own SENTINEL_HOME.

Hosts on loopback share the name and the network of the machine. Hosts in network namespaces have
their own names and addresses, and a switch with links that can be cut. That needs root; see
`namespaces.py`.
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
TIMEOUT_SECONDS = 240.0
"""Limit for what takes an idle machine a few seconds."""

DEFAULT_SETTINGS = {
    "SENTINEL_LINGER_SECONDS": "0",
    "SENTINEL_NODE_POLL_SECONDS": "0",
    # Trainings of these tests wait at barriers.
    "SENTINEL_DETECTORS__RUN_STALLED__FLOOR": "3600",
    "OMP_NUM_THREADS": "1",
    "TORCH_CPP_LOG_LEVEL": "ERROR",
}
"""Settings of every host, unless a test overrides them."""

CLOCK_SHIFT_CODE = """
import time
def shifted(real=time.time):
    return real() + {seconds}
def shifted_ns(real=time.time_ns):
    return real() + int({seconds} * 1e9)
time.time, time.time_ns = shifted, shifted_ns
"""

MARKER_VARIABLE = "HOST_UNDER_TEST"
"""Variable that all processes of a host inherit, by which they are found."""


class Host:
    """One node: the environment of its processes, and their end.

    `prefix` are arguments before each command line that make it run there. `within` calls a
    function in the network of that node.
    """

    prefix: tuple[str, ...] = ()

    def __init__(self, name: str, address: str, folder: Path) -> None:
        self.name, self.address, self.folder = name, address, folder
        self.marker = f"{name}-{uuid4().hex}"
        self.settings: dict[str, str] = {}
        self._started: list[subprocess.Popen[bytes]] = []
        folder.mkdir(parents=True)

    @property
    def home(self) -> Path:
        return self.folder / "home"

    @property
    def environ(self) -> dict[str, str]:
        """The environment of its processes."""
        own = {
            MARKER_VARIABLE: self.marker,
            "SENTINEL_HOME": str(self.home),
            "SENTINEL_RUNTIME_DIR": str(self.folder / "shm"),
            "TMPDIR": str(self.folder),
        }
        return {**os.environ, **DEFAULT_SETTINGS, **own, **self.settings}

    def start(self, *words: Any, **more: Any) -> subprocess.Popen[bytes]:
        """Start a process on this node, with additional variables. Its output goes to `output`."""
        with (self.folder / "output").open("ab") as output:
            process = subprocess.Popen(
                [*self.prefix, *map(str, words)],
                env={**self.environ, **{key: str(value) for key, value in more.items()}},
                cwd=self.folder,
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
            )
        self._started.append(process)
        return process

    def python(self, *words: Any, **more: Any) -> subprocess.Popen[bytes]:
        """Start Python on this node."""
        return self.start(sys.executable, *words, **more)

    def run_python(self, *words: Any) -> str:
        """The standard output of Python on this node, whatever its exit code."""
        command = [*self.prefix, sys.executable, *map(str, words)]
        done = subprocess.run(
            command, env=self.environ, cwd=self.folder, stdin=subprocess.DEVNULL,
            capture_output=True, text=True, timeout=TIMEOUT_SECONDS, check=False,
        )  # fmt: skip
        return done.stdout

    @property
    def output(self) -> str:
        """The output of all its processes, for failure messages."""
        return (self.folder / "output").read_text(errors="replace")

    def shift_clock(self, seconds: float) -> None:
        """Shift the clock of every process that is started from now on."""
        folder = self.folder / "clock"
        folder.mkdir()
        (folder / "sitecustomize.py").write_text(CLOCK_SHIFT_CODE.format(seconds=seconds))
        self.settings["PYTHONPATH"] = f"{folder}:{os.environ['PYTHONPATH']}"

    def within(self, call: Callable[[], Any]) -> Any:
        """The result of `call` in the network of this node."""
        return call()

    def fetch(self, url: str) -> str:
        """The response of an HTTP server on this node; "" without one."""

        def ask() -> str:
            try:
                with urlopen(url, timeout=10.0) as answer:
                    return str(answer.read().decode())
            except (URLError, ConnectionError, TimeoutError):
                return ""

        return str(self.within(ask))

    def processes(self, word: str = "") -> list[psutil.Process]:
        """The processes of this node, optionally those with that command line argument."""
        found = []
        for process in psutil.process_iter():
            with suppress(psutil.Error):
                ours = process.environ().get(MARKER_VARIABLE) == self.marker
                alive = ours and process.status() != psutil.STATUS_ZOMBIE
                if alive and (not word or word in process.cmdline()):
                    found.append(process)
        return found

    def agents(self) -> list[psutil.Process]:
        """The agents of this node."""
        return self.processes("agent")

    def end_agents(self) -> None:
        """Ask its agents to end, which process what they have received before."""
        for agent in self.agents():
            agent.terminate()

    def kill(self, word: str = "") -> None:
        """Kill all processes, or those with that argument, as a power failure does."""

        def none_left() -> bool:
            left = self.processes(word)
            for process in left:
                with suppress(psutil.NoSuchProcess):
                    process.send_signal(signal.SIGKILL)
            return not left

        until(none_left, TIMEOUT_SECONDS, f"{self.name} has no processes")

    def runs(self) -> list[Path]:
        """The directories of the runs of its agents, oldest first."""
        found = (self.home / "runs").glob("*/sentinel.db")
        return [path.parent for path in sorted(found, key=lambda path: path.stat().st_ctime_ns)]

    def run(self) -> Path:
        """The directory of the only run, once its agent has created it."""
        until(self.runs, TIMEOUT_SECONDS, f"an agent runs on {self.name}")
        (run,) = self.runs()
        return run

    def url(self) -> str:
        """The address of the agent of the only run, once it listens."""
        registration = self.run() / "agent.json"
        until(registration.exists, TIMEOUT_SECONDS, f"the agent of {self.name} listens")
        return str(json.loads(registration.read_text())["url"])

    def close(self) -> None:
        """End all processes of this node."""
        self.kill()
        for process in self._started:
            process.wait(TIMEOUT_SECONDS)


class Site:
    """The hosts of one test, closed with it."""

    address = "127.0.0.1"

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.hosts: list[Host] = []

    def add_host(self) -> Host:
        """Add a host."""
        name = f"node{len(self.hosts)}"
        host = self.create_host(name, self.folder / name)
        self.hosts.append(host)
        return host

    def create_host(self, name: str, folder: Path) -> Host:
        return Host(name, self.address, folder)

    def add_hosts(self, count: int) -> list[Host]:
        """Add hosts; the first one has rank 0."""
        return [self.add_host() for _ in range(count)]

    def close(self) -> None:
        """Close all hosts."""
        for host in self.hosts:
            host.close()
