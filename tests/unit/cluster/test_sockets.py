"""Sockets of the cluster: their interface, and who is connected."""

import socket

import pytest

from sentinel.cluster.sockets import count_accepted_connections, local_address

ETHERNET = "198.51.100.9"


def test_the_connections_of_peers_to_a_port_are_counted():
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        assert count_accepted_connections(port) == 0
        with socket.create_connection(("127.0.0.1", port)):
            assert count_accepted_connections(port) == 1


@pytest.fixture
def resolve(monkeypatch):
    """Sets the addresses that every name resolves to; all of them belong to this node."""

    def resolve_to(*addresses):
        found = [(socket.AF_INET, socket.SOCK_STREAM, 6, "", (each, 0)) for each in addresses]
        monkeypatch.setattr(socket, "getaddrinfo", lambda *_, **__: found)
        monkeypatch.setattr(socket.socket, "bind", lambda *_: None)

    return resolve_to


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.2", "::1"])
def test_an_address_of_this_node_is_its_interface(host):
    assert local_address(host) == host


def test_localhost_is_loopback():
    assert local_address("localhost") in {"127.0.0.1", "::1"}


@pytest.mark.parametrize("host", ["", ETHERNET, "no-such-host.invalid", "a" * 300, "\ud800"])
def test_a_host_elsewhere_is_no_interface_of_this_node(host):
    assert local_address(host) == ""


def test_a_name_that_resolves_to_loopback_is_not_reached_by_others(resolve):
    resolve("127.0.1.1")

    assert local_address("gpu-a") == ""


def test_the_first_address_that_others_reach_is_chosen(resolve):
    resolve("127.0.1.1", ETHERNET, "198.51.100.10")

    assert local_address("gpu-a") == ETHERNET
