"""A network namespace with a loopback device that carries only the traffic of the benchmark."""

from __future__ import annotations

import fcntl
import os
import shutil
import socket
import struct
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

_NAMESPACE_VARIABLE = "BENCH_NETWORK_NAMESPACE"
_NAMESPACE_ENVIRON = {"TORCH_CPP_LOG_LEVEL": "ERROR"}
"""Without a name server in the namespace, torch would log a warning for each connection."""
_GET_FLAGS, _SET_FLAGS, _IFF_UP = 0x8913, 0x8914, 1


class Traffic(NamedTuple):
    """Traffic of the loopback device: bytes, packets."""

    sent: int
    packets: int

    def since(self, before: Traffic) -> Traffic:
        """The difference from an earlier reading."""
        return Traffic(self.sent - before.sent, self.packets - before.packets)


def enter_network_namespace() -> bool:
    """Run this script again in its own network namespace, and exit with its exit code.

    True if it already runs in one; False if that is not permitted, so that traffic of
    other processes may be counted.
    """
    if os.environ.get(_NAMESPACE_VARIABLE):
        _bring_up()
        return True
    command = ["unshare", "--net"] + ["--map-root-user"] * (os.geteuid() != 0)
    if (
        shutil.which("unshare") is None
        or subprocess.run([*command, "true"], check=False).returncode
    ):
        print("Network namespaces are not permitted: bytes on the network are left out.")
        return False
    done = subprocess.run(
        [*command, sys.executable, *sys.argv],
        env={**os.environ, _NAMESPACE_VARIABLE: "1", **_NAMESPACE_ENVIRON},
        check=False,
    )
    raise SystemExit(done.returncode)


def traffic() -> Traffic:
    """Traffic over loopback so far."""
    for line in Path("/proc/net/dev").read_text().splitlines():
        name, _, numbers = line.partition(":")
        if name.strip() == "lo":
            fields = numbers.split()
            return Traffic(int(fields[8]), int(fields[9]))
    return Traffic(0, 0)


def _bring_up() -> None:
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as any_socket:
        request = struct.pack("16sH14x", b"lo", 0)
        _, flags = struct.unpack("16sH14x", fcntl.ioctl(any_socket, _GET_FLAGS, request))
        fcntl.ioctl(any_socket, _SET_FLAGS, struct.pack("16sH14x", b"lo", flags | _IFF_UP))
