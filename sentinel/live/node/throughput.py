"""Network and disk throughput of this node, from the byte counters of the kernel."""

from __future__ import annotations

import time
from collections.abc import Callable, Collection, Iterator
from dataclasses import dataclass, field
from pathlib import Path

import psutil

from sentinel.live.memory_cgroup import read_kernel_text

SYS_ROOT = Path("/sys")

LOOPBACK_NAMES = frozenset({"lo", "lo0"})

INFINIBAND_LINK_TYPE = "32"
"""ARPHRD_INFINIBAND: the link type of IP over InfiniBand."""

BYTES_PER_PORT_COUNT = 4
"""The InfiniBand specification counts the data of a port in words of 32 bits."""

_MEMORY_DISK_PREFIXES = ("loop", "ram", "zram")

_UNREADABLE = (OSError, RuntimeError, ValueError)
"""What psutil raises where the kernel has no counters, or has them in a form that is not known."""

Counts = dict[tuple[str, str], int]
"""Bytes by signal and device."""


@dataclass
class ThroughputReader:
    """Reads network and disk throughput; the first read has none, it is a difference of two.

    Each byte is counted once: loopback, bridges, bonds, RAID and logical volumes are left out where
    the devices below them are visible. RDMA passes by the network interfaces of the kernel, so the
    ports of InfiniBand and RoCE are added. `clock` returns seconds; the default does not advance
    while the machine is suspended.
    """

    sys_root: Path = SYS_ROOT
    clock: Callable[[], float] = time.monotonic
    _last_counts: Counts = field(default_factory=dict)
    _last_time: float = 0.0

    def read(self) -> dict[str, float]:
        """`host_network_received`, `_sent`, `host_disk_read` and `_written` in bytes per second.

        What the kernel does not count, as in some containers, is missing. A counter that wrapped or
        was reset, and a device that is new, count from the next read on.
        """
        now, counts = self.clock(), {**self._network_counts(), **self._disk_counts()}
        elapsed, growth = now - self._last_time, dict[str, int]()
        for key, count in counts.items():
            if key in self._last_counts:
                grown = max(0, count - self._last_counts[key])
                growth[key[0]] = growth.get(key[0], 0) + grown
        self._last_counts, self._last_time = counts, now
        return {name: grown / elapsed for name, grown in growth.items()} if elapsed > 0.0 else {}

    def _network_counts(self) -> Counts:
        try:
            interfaces = psutil.net_io_counters(pernic=True, nowrap=False) or {}
        except _UNREADABLE:
            interfaces = {}
        ports = dict(self._rdma_counts())
        directory = self.sys_root / "class" / "net"
        names = {
            name
            for name in interfaces.keys() - LOOPBACK_NAMES
            # IP over InfiniBand is part of what the port counts.
            if not ports or read_kernel_text(directory / name / "type") != INFINIBAND_LINK_TYPE
        }
        for name in _physical(names, directory):
            ports["host_network_received", name] = interfaces[name].bytes_recv
            ports["host_network_sent", name] = interfaces[name].bytes_sent
        return ports

    def _rdma_counts(self) -> Iterator[tuple[tuple[str, str], int]]:
        for port in sorted((self.sys_root / "class" / "infiniband").glob("*/ports/*/counters")):
            for signal, name in (
                ("host_network_received", "port_rcv_data"),
                ("host_network_sent", "port_xmit_data"),
            ):
                text = read_kernel_text(port / name)
                if text.isdecimal():
                    yield (signal, str(port)), BYTES_PER_PORT_COUNT * int(text)

    def _disk_counts(self) -> Counts:
        try:
            disks = psutil.disk_io_counters(perdisk=True, nowrap=False) or {}
        except _UNREADABLE:
            # A container may have neither /proc/diskstats nor /sys/block.
            return {}
        directory = self.sys_root / "block"
        names = {name for name in disks if not name.startswith(_MEMORY_DISK_PREFIXES)}
        # A partition has no entry there, and its bytes are those of its disk.
        whole = {name for name in names if (directory / name).exists()} or names
        counts: Counts = {}
        for name in _physical(whole, directory):
            counts["host_disk_read", name] = disks[name].read_bytes
            counts["host_disk_written", name] = disks[name].write_bytes
        return counts


def _physical(names: Collection[str], directory: Path) -> Collection[str]:
    """Those that are hardware and no part of other hardware, or all if none is visible.

    A virtual machine with SR-IOV has an interface that includes the one passed through to it.
    """
    physical = [
        name
        for name in names
        if (directory / name / "device").exists()
        and not (directory / name / "master" / "device").exists()
    ]
    return physical or names
