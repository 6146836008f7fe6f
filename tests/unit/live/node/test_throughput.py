"""Network and disk throughput of the node."""

from __future__ import annotations

import os
from types import SimpleNamespace

import psutil
import pytest
from support.clocks import FakeClock

from sentinel.live.node.throughput import ThroughputReader


class FakeCounters:
    """The counters of psutil, and a tree like /sys that says which devices are hardware."""

    def __init__(self, root, monkeypatch):
        self.root, self.network, self.disks = root, {}, {}
        self.clock = FakeClock(1000.0)
        monkeypatch.setattr(psutil, "net_io_counters", lambda **_: self.network)
        monkeypatch.setattr(psutil, "disk_io_counters", lambda **_: self.disks)
        self.reader = ThroughputReader(root, self.clock)

    def add_device(self, folder, *parts):
        for part in parts or ("",):
            (self.root / folder / part).mkdir(parents=True, exist_ok=True)

    def set_network(self, **received):
        self.network = {
            name: SimpleNamespace(bytes_recv=count, bytes_sent=2 * count)
            for name, count in received.items()
        }

    def set_disks(self, **read):
        self.disks = {
            name: SimpleNamespace(read_bytes=count, write_bytes=3 * count)
            for name, count in read.items()
        }

    def rates_after(self, seconds=10.0):
        self.clock.now += seconds
        return self.reader.read()


@pytest.fixture
def counters(tmp_path, monkeypatch):
    return FakeCounters(tmp_path, monkeypatch)


def test_rates_are_the_growth_of_all_devices_per_second(counters):
    counters.set_network(eth0=100, eth1=0, lo=5)
    counters.set_disks(sda=1000)
    assert counters.rates_after() == {}
    counters.set_network(eth0=300, eth1=50, lo=10**9)
    counters.set_disks(sda=1100)

    assert counters.rates_after() == {
        "host_network_received": 25.0,
        "host_network_sent": 50.0,
        "host_disk_read": 10.0,
        "host_disk_written": 30.0,
    }


def test_a_byte_is_counted_once(counters):
    """Bonds, bridges, volumes and partitions count what the hardware below them counts too."""
    counters.add_device("class/net/eth0/device")
    counters.add_device("class/net/eth0/master")  # A bond, which is no hardware.
    counters.add_device("class/net/vf0", "device", "master/device")  # Passed through, part of eth0.
    counters.add_device("class/net/bond0")
    counters.add_device("block/sda/device")
    counters.add_device("block/dm-0")
    zero = dict.fromkeys(("eth0", "vf0", "bond0", "docker0"), 0)
    counters.set_network(**zero)
    counters.set_disks(sda=0, sda1=0, **{"dm-0": 0, "loop1": 0})
    counters.rates_after()
    counters.set_network(**dict.fromkeys(zero, 40))
    counters.set_disks(sda=50, sda1=50, **{"dm-0": 50, "loop1": 50})
    rates = counters.rates_after()

    assert (rates["host_network_received"], rates["host_disk_read"]) == (4.0, 5.0)


def test_a_container_without_hardware_has_its_virtual_interface(counters):
    counters.add_device("class/net/eth0")
    counters.add_device("block/vdx")
    counters.set_network(eth0=0)
    counters.set_disks(vdx=0, vdx1=0)
    counters.rates_after()
    counters.set_network(eth0=10)
    counters.set_disks(vdx=20, vdx1=20)
    rates = counters.rates_after()

    assert (rates["host_network_received"], rates["host_disk_read"]) == (1.0, 2.0)


def test_rdma_passes_by_the_interfaces_and_is_added(counters):
    port = counters.root / "class/infiniband/mlx5_0/ports/1/counters"
    counters.add_device(port)
    counters.add_device("class/net/ib0", "device")
    counters.add_device("class/net/eth0", "device")
    (counters.root / "class/net/ib0/type").write_text("32\n")
    (port / "port_rcv_data").write_text("0\n")
    (port / "port_xmit_data").write_text("N/A\n")
    counters.set_network(eth0=0, ib0=0)
    counters.rates_after()
    (port / "port_rcv_data").write_text("1000\n")
    counters.set_network(eth0=100, ib0=400)
    rates = counters.rates_after()

    assert (rates["host_network_received"], rates["host_network_sent"]) == (410.0, 20.0)


def test_a_counter_that_wraps_or_is_reset_has_no_negative_or_huge_rate(counters):
    counters.set_network(eth0=2**32 - 1, eth1=0)
    counters.rates_after()
    counters.set_network(eth0=500, eth1=100)
    assert counters.rates_after()["host_network_received"] == 10.0
    counters.set_network(eth0=700, eth1=200)
    assert counters.rates_after()["host_network_received"] == 30.0


def test_a_new_device_counts_from_its_second_read(counters):
    counters.set_network(eth0=0)
    counters.rates_after()
    counters.set_network(eth0=100, eth9=10**12)
    assert counters.rates_after()["host_network_received"] == 10.0
    counters.set_network(eth9=10**12 + 50)
    assert counters.rates_after()["host_network_received"] == 5.0
    counters.set_network()
    assert counters.rates_after() == {}


def test_a_clock_that_stands_still_gives_no_rate(counters):
    counters.set_network(eth0=0)
    counters.rates_after()

    assert counters.rates_after(0.0) == {}
    assert counters.rates_after(5.0) == {"host_network_received": 0.0, "host_network_sent": 0.0}


@pytest.mark.parametrize("error", [NotImplementedError, FileNotFoundError, ValueError])
def test_without_diskstats_the_network_is_still_measured(counters, monkeypatch, error):
    def fail(**_):
        raise error("not supported by kernel: no /proc/diskstats or /sys/block")

    monkeypatch.setattr(psutil, "disk_io_counters", fail)
    counters.set_network(eth0=0)
    counters.rates_after()
    assert counters.rates_after().keys() == {"host_network_received", "host_network_sent"}
    monkeypatch.setattr(psutil, "net_io_counters", lambda **_: None)
    assert counters.rates_after() == {}


def test_counters_of_this_machine_are_read():
    """Whatever this machine counts, is a finite rate; a real write never makes it negative."""
    reader = ThroughputReader()
    reader.read()
    os.sync()

    assert all(0.0 <= rate < 1e13 for rate in reader.read().values())
