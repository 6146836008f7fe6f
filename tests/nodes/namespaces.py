"""Namespaces: hosts with names, addresses and links of their own, on one machine, for root.

Every host is a network namespace with one link to a switch, which is a namespace as well: the
machine's own network is not touched. All is named after the process that made it, removed when the
test is over, and, where that was killed before, by the next one that begins.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
import threading
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil
from hosts import Host, Site

PREFIX = "sentinel-test"
NAMESPACES, FILES = Path("/run/netns"), Path("/etc/netns")
_NETWORK = 0x40000000
"""CLONE_NEWNET of setns(2)."""

# Both exec what follows: the process that is started is the one that then runs.
_NAMED = 'hostname "$0" && exec "$@"'


class RefusedError(RuntimeError):
    """Why there can be no namespaces here."""


def ip(*words: str) -> None:
    """One command of iproute2. Raises RefusedError with what it said."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise RefusedError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Namespace(Host):
    """A node of its own: host name, address, loopback and one link."""

    def __init__(self, name: str, address: str, folder: Path, space: str, switch: str) -> None:
        super().__init__(name, address, folder)
        self.space, self.switch = space, switch
        words = ("ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", _NAMED, name)
        self.prefix = words
        ip("netns", "add", space)
        ip("-n", space, "link", "set", "lo", "up")
        peer = ("type", "veth", "peer", "name", "eth0", "netns", space)
        ip("-n", switch, "link", "add", name, *peer)
        ip("-n", switch, "link", "set", name, "master", "bridge", "up")
        ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")

    def cut(self) -> None:
        """Pull its cable: what is sent is lost, and nobody is told."""
        ip("-n", self.switch, "link", "set", self.name, "nomaster")

    def heal(self) -> None:
        """Plug it in again."""
        ip("-n", self.switch, "link", "set", self.name, "master", "bridge")

    def within(self, call: Callable[[], Any]) -> Any:
        told: list[Any] = []

        def inside() -> None:
            with (NAMESPACES / self.space).open() as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), _NETWORK):
                    raise OSError(ctypes.get_errno(), f"cannot enter {self.space}")
            told.append(call())

        # A namespace is a thread's: ours must not stay there.
        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        return told[0]

    def close(self) -> None:
        super().close()
        remove(self.space)


class Cluster(Site):
    """Namespaces on one switch. Raises RefusedError where they cannot be made."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if shutil.which("ip") is None:
            raise RefusedError("there is no `ip` (apt-get install iproute2)")
        if os.geteuid():
            raise RefusedError("only root may make network namespaces")
        sweep()
        # Several sites of one test get along.
        self.name = f"{PREFIX}-{os.getpid()}-{id(self):x}"
        self.switch = f"{self.name}-switch"
        try:
            ip("netns", "add", self.switch)
            ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self.switch, "link", "set", "bridge", "up")
        except RefusedError:
            remove(self.switch)
            raise

    def made(self, name: str, folder: Path) -> Namespace:
        address, space = f"10.88.0.{len(self.hosts) + 1}", f"{self.name}-{name}"
        # What `ip netns exec` shows there as /etc/hosts: names are found as in any cluster.
        (FILES / space).mkdir(parents=True)
        known = [("localhost", "127.0.0.1")]
        known += [(f"node{number}", f"10.88.0.{number + 1}") for number in range(16)]
        lines = [f"{its} {called}\n" for called, its in known]
        (FILES / space / "hosts").write_text("".join(lines))
        return Namespace(name, address, folder, space, self.switch)

    def close(self) -> None:
        try:
            super().close()
        finally:
            for host in self.hosts:
                remove(f"{self.name}-{host.name}")
            remove(self.switch)


def remove(space: str) -> None:
    """A namespace and its files, as far as they are there."""
    with suppress(RefusedError):
        ip("netns", "delete", space)
    shutil.rmtree(FILES / space, ignore_errors=True)
    with suppress(OSError):
        # Only if nobody else keeps something in it.
        FILES.rmdir()


def sweep() -> None:
    """Remove what a killed test process left, and the processes that still run in it."""
    for path in [*NAMESPACES.glob(f"{PREFIX}-*"), *FILES.glob(f"{PREFIX}-*")]:
        maker = int(path.name.removeprefix(f"{PREFIX}-").split("-")[0])
        if psutil.pid_exists(maker):
            continue
        asked = ["ip", "netns", "pids", path.name]
        inside = subprocess.run(asked, capture_output=True, text=True, check=False).stdout.split()
        for pid in map(int, inside):
            with suppress(psutil.NoSuchProcess):
                psutil.Process(pid).kill()
        remove(path.name)
