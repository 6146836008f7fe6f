"""Tests of the hosts, links and proxies of these tests."""

import socket
import subprocess

import pytest
from hosts import TIMEOUT_SECONDS
from namespaces import FILES, NAMESPACES, PREFIX, ip, remove_stale_namespaces
from support.rank_processes import until
from tcp_proxy import TcpProxy

PRINT_NAME_CODE = (
    "import socket; print(socket.gethostname(), socket.gethostbyname(socket.gethostname()))"
)
SLEEP_CODE = "import time; time.sleep(3600)"


def reaches(host, address, port):
    def connect():
        try:
            socket.create_connection((address, port), timeout=0.5).close()
        except OSError:
            return False
        return True

    return host.within(connect)


@pytest.mark.nodes
def test_each_namespace_has_its_own_name_and_address(cluster):
    first, second = cluster.add_hosts(2)
    for host in (first, second):
        assert host.python("-c", PRINT_NAME_CODE).wait(TIMEOUT_SECONDS) == 0
        assert host.output.split() == [host.name, host.address]
    assert first.address != second.address


@pytest.mark.nodes
def test_a_cut_link_separates_two_namespaces_until_it_is_restored(cluster):
    first, second = cluster.add_hosts(2)
    with second.within(lambda: socket.create_server((second.address, 0))) as server:
        port = server.getsockname()[1]
        assert reaches(first, second.address, port)
        second.cut()
        assert not reaches(first, second.address, port)
        second.restore()
        until(lambda: reaches(first, second.address, port), TIMEOUT_SECONDS, "the link is restored")


def test_a_cut_proxy_delays_bytes_until_it_is_restored():
    with (
        socket.create_server(("127.0.0.1", 0)) as server,
        TcpProxy(server.getsockname()) as proxy,
        socket.create_connection(("127.0.0.1", proxy.port)) as near,
    ):
        far, _ = server.accept()
        far.settimeout(TIMEOUT_SECONDS)
        near.sendall(b"before")
        assert far.recv(64) == b"before"
        proxy.cut()
        near.sendall(b"during")
        far.settimeout(0.2)
        with pytest.raises(TimeoutError):
            far.recv(64)
        proxy.restore()
        far.settimeout(TIMEOUT_SECONDS)
        assert far.recv(64) == b"during"
        far.sendall(b"back")
        assert near.recv(64) == b"back"
        far.close()
        assert near.recv(64) == b""


def test_killing_a_host_ends_its_processes_only(site):
    first, second = site.add_hosts(2)
    code = "import subprocess, sys; subprocess.Popen([sys.executable, '-c', sys.argv[1]], "
    parent = second.python("-c", f"{code}start_new_session=True).wait()", SLEEP_CODE)
    other = first.python("-c", SLEEP_CODE)
    until(lambda: len(second.processes()) == 2, TIMEOUT_SECONDS, "parent and child")
    second.kill()
    assert parent.wait(TIMEOUT_SECONDS) == -9
    assert second.processes() == []
    assert [process.pid for process in first.processes()] == [other.pid]
    site.close()
    assert other.wait(TIMEOUT_SECONDS) == -9


@pytest.mark.nodes
def test_a_closed_site_leaves_no_namespace(cluster):
    host = cluster.add_host()
    child = host.python("-c", SLEEP_CODE)
    assert (NAMESPACES / host.space).exists()
    cluster.close()
    assert child.wait(TIMEOUT_SECONDS) == -9
    assert [*NAMESPACES.glob(f"{cluster.name}*"), *FILES.glob(f"{cluster.name}*")] == []


@pytest.mark.nodes
def test_namespaces_of_a_killed_test_are_removed(cluster):
    ended = subprocess.Popen(["true"])
    ended.wait()
    stale = f"{PREFIX}-{ended.pid}-stale"
    ip("netns", "add", stale)
    remove_stale_namespaces()
    assert not (NAMESPACES / stale).exists()
    assert (NAMESPACES / cluster.switch).exists()
