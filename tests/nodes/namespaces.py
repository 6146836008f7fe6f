"""Hosts in network namespaces, with their own names, addresses and links; needs root.

Each host is a network namespace with one link to a switch, which is a namespace too: the network of
the machine is not changed. Namespaces are named after the test process, removed at the end of the
test, and by the next test if it was killed.
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

# Each command execs the next one: the started process is the one that runs.
_SET_HOSTNAME = 'hostname "$0" && exec "$@"'


class NamespaceError(RuntimeError):
    """Network namespaces cannot be created here."""


def ip(*words: str) -> None:
    """Run a command of iproute2. Raises NamespaceError with its error output."""
    done = subprocess.run(["ip", *words], capture_output=True, text=True, check=False)
    if done.returncode:
        raise NamespaceError(f"ip {' '.join(words)}: {done.stderr.strip()}")


class Namespace(Host):
    """A host with its own host name, address, loopback and one link."""

    def __init__(self, name: str, address: str, folder: Path, space: str, switch: str) -> None:
        super().__init__(name, address, folder)
        self.space, self.switch = space, switch
        words = ("ip", "netns", "exec", space, "unshare", "--uts", "sh", "-c", _SET_HOSTNAME, name)
        self.prefix = words
        ip("netns", "add", space)
        ip("-n", space, "link", "set", "lo", "up")
        peer = ("type", "veth", "peer", "name", "eth0", "netns", space)
        ip("-n", switch, "link", "add", name, *peer)
        ip("-n", switch, "link", "set", name, "master", "bridge", "up")
        ip("-n", space, "address", "add", f"{address}/24", "dev", "eth0")
        ip("-n", space, "link", "set", "eth0", "up")

    def cut(self) -> None:
        """Cut its link: packets are lost without an error."""
        ip("-n", self.switch, "link", "set", self.name, "nomaster")

    def restore(self) -> None:
        """Restore its link."""
        ip("-n", self.switch, "link", "set", self.name, "master", "bridge")

    def within(self, call: Callable[[], Any]) -> Any:
        results: list[Any] = []

        def inside() -> None:
            with (NAMESPACES / self.space).open() as file:
                libc = ctypes.CDLL(None, use_errno=True)
                if libc.setns(file.fileno(), _NETWORK):
                    raise OSError(ctypes.get_errno(), f"cannot enter {self.space}")
            results.append(call())

        # A thread enters the namespace, since the test thread must not.
        thread = threading.Thread(target=inside)
        thread.start()
        thread.join()
        return results[0]

    def close(self) -> None:
        super().close()
        remove(self.space)


class NamespaceSite(Site):
    """Namespaces on one switch. Raises NamespaceError if they cannot be created."""

    def __init__(self, folder: Path) -> None:
        super().__init__(folder)
        if shutil.which("ip") is None:
            raise NamespaceError("there is no `ip` (apt-get install iproute2)")
        if os.geteuid():
            raise NamespaceError("only root may make network namespaces")
        remove_stale_namespaces()
        # Unique for several sites of one test.
        self.name = f"{PREFIX}-{os.getpid()}-{id(self):x}"
        self.switch = f"{self.name}-switch"
        try:
            ip("netns", "add", self.switch)
            ip("-n", self.switch, "link", "add", "bridge", "type", "bridge")
            ip("-n", self.switch, "link", "set", "bridge", "up")
        except NamespaceError:
            remove(self.switch)
            raise

    def create_host(self, name: str, folder: Path) -> Namespace:
        address, space = f"10.88.0.{len(self.hosts) + 1}", f"{self.name}-{name}"
        # `ip netns exec` mounts this as /etc/hosts.
        (FILES / space).mkdir(parents=True)
        known = [("localhost", "127.0.0.1")]
        known += [(f"node{number}", f"10.88.0.{number + 1}") for number in range(16)]
        lines = [f"{ip_address} {host}\n" for host, ip_address in known]
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
    """Remove a namespace and its files, if they exist."""
    with suppress(NamespaceError):
        ip("netns", "delete", space)
    shutil.rmtree(FILES / space, ignore_errors=True)
    with suppress(OSError):
        # Only if it is empty.
        FILES.rmdir()


def remove_stale_namespaces() -> None:
    """Remove namespaces of killed test processes, and the processes in them."""
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
