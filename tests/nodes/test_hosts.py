"""The hosts of these tests are what they seem to be."""

import socket
import subprocess

import pytest
from hosts import PATIENCE
from namespaces import FILES, NAMESPACES, PREFIX, ip, sweep
from support.rank_processes import until
from tcp_proxy import Cable

ASK = "import socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))"
SLEEP = "import time; time.sleep(3600)"


def reaches(host, address, port):
    def ask():
        try:
            socket.create_connection((address, port), timeout=0.5).close()
        except OSError:
            return False
        return True

    return host.within(ask)


@pytest.mark.nodes
def test_every_namespace_has_a_name_and_an_address_of_its_own(cluster):
    first, second = cluster.of(2)
    for host in (first, second):
        assert host.python("-c", ASK).wait(PATIENCE) == 0
        assert host.said.split() == [host.name, host.address]
    assert first.address != second.address


@pytest.mark.nodes
def test_a_cable_that_is_pulled_parts_two_namespaces_and_heals(cluster):
    first, second = cluster.of(2)
    with second.within(lambda: socket.create_server((second.address, 0))) as server:
        port = server.getsockname()[1]
        assert reaches(first, second.address, port)
        second.cut()
        assert not reaches(first, second.address, port)
        second.heal()
        until(lambda: reaches(first, second.address, port), PATIENCE, "healed")


def test_a_cable_on_loopback_that_is_cut_keeps_what_is_sent_until_it_is_healed():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        Cable(server.getsockname()) as cable,
        socket.create_connection(("127.0.0.1", cable.port)) as near,
    ):
        far, _ = server.accept()
        far.settimeout(PATIENCE)
        near.sendall(b"before")
        assert far.recv(64) == b"before"
        cable.cut()
        near.sendall(b"during")
        far.settimeout(0.2)
        with pytest.raises(TimeoutError):
            far.recv(64)
        cable.heal()
        far.settimeout(PATIENCE)
        assert far.recv(64) == b"during"
        far.sendall(b"back")
        assert near.recv(64) == b"back"
        far.close()
        assert near.recv(64) == b""


def test_a_host_that_is_killed_leaves_nothing_and_no_other_host_notices(site):
    first, second = site.of(2)
    there = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], "
    mother = second.python("-c", f"{there}start_new_session=True).wait()", SLEEP)
    other = first.python("-c", SLEEP)
    until(lambda: len(second.processes()) == 2, PATIENCE, "mother and child")
    second.kill()
    assert mother.wait(PATIENCE) == -9
    assert second.processes() == []
    assert [process.pid for process in first.processes()] == [other.pid]
    site.close()
    assert other.wait(PATIENCE) == -9


@pytest.mark.nodes
def test_nothing_of_a_namespace_is_left_when_the_test_is_over(cluster):
    host = cluster.host()
    child = host.python("-c", SLEEP)
    assert (NAMESPACES / host.space).exists()
    cluster.close()
    assert child.wait(PATIENCE) == -9
    assert [*NAMESPACES.glob(f"{cluster.name}*"), *FILES.glob(f"{cluster.name}*")] == []


@pytest.mark.nodes
def test_what_a_killed_test_left_is_removed_by_the_next(cluster):
    gone = subprocess.Popen(["true"])
    gone.wait()
    left = f"{PREFIX}-{gone.pid}-left"
    ip("netns", "add", left)
    sweep()
    assert not (NAMESPACES / left).exists()
    assert (NAMESPACES / cluster.switch).exists()
