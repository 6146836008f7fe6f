"""Limits of connections: idle and slow ones are closed, and never keep others out."""

from __future__ import annotations

import socket
import ssl
import threading
import time
from contextlib import ExitStack, suppress

import pytest
import requests
from support.certificates import make_certificate
from support.rank_processes import until
from support.results import RUN
from support.web_servers import TIMEOUT_SECONDS, get, servers

from sentinel.metrics.exposition import Exposition
from sentinel.model.counters import Counters
from sentinel.web import connections
from sentinel.web.connections import TimedH11Protocol

REQUEST = b"GET /-/healthy HTTP/1.1\r\nhost: localhost\r\n\r\n"
HALF_REQUEST = b"GET /metrics HTTP/1.1\r\nhost: local"
BODY_MISSING = b"POST /-/healthy HTTP/1.1\r\nhost: localhost\r\ncontent-length: 9\r\n\r\n{"


@pytest.fixture
def serve():
    with servers() as start:
        yield start


@pytest.fixture
def connect():
    """Returns a function that connects to the server of a URL; all are closed at the end."""
    with ExitStack() as stack:

        def open_connection(url, data=b""):
            port = int(url.rpartition(":")[2])
            opened = socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS)
            stack.enter_context(opened)
            opened.sendall(data)
            return opened

        yield open_connection


@pytest.mark.fault("H2")
@pytest.mark.parametrize(
    "data",
    [b"", HALF_REQUEST, BODY_MISSING],
    ids=["nothing", "half", "no_body"],
)
def test_a_connection_with_an_incomplete_request_is_closed(serve, connect, monkeypatch, data):
    monkeypatch.setattr(TimedH11Protocol, "request_timeout", 0.2)

    assert b" 200 OK" not in read_until_closed(connect(serve(), data))


@pytest.mark.fault("H2")
def test_a_later_request_that_is_incomplete_is_cut_off_too(serve, connect, monkeypatch):
    peer = connect(serve(), REQUEST)
    until(lambda: answered(peer), TIMEOUT_SECONDS, "the first request is answered")
    monkeypatch.setattr(TimedH11Protocol, "request_timeout", 0.2)
    peer.sendall(HALF_REQUEST)

    assert read_until_closed(peer).count(b"HTTP/1.1 200 OK") == 1


def read_until_closed(peer):
    """All data until the server closes the connection; fails after the timeout of the socket."""
    response = b""
    with suppress(ConnectionResetError):
        while chunk := peer.recv(100_000):
            response += chunk
    return response


@pytest.mark.fault("H2")
def test_a_request_that_arrives_byte_by_byte_is_cut_off(serve, connect, monkeypatch):
    """The time runs from its beginning, not from the last byte."""
    monkeypatch.setattr(TimedH11Protocol, "request_timeout", 0.3)
    peer, sent = connect(serve()), 0
    with suppress(ConnectionError):
        for _ in range(10_000):
            peer.sendall(b"G")
            sent += 1
            time.sleep(0.005)

    assert sent < 10_000


def test_a_complete_request_may_wait_for_its_response(serve, monkeypatch):
    """Its response is computed for longer than the timeout."""
    monkeypatch.setattr(TimedH11Protocol, "request_timeout", 0.05)
    expired = threading.Event()

    def state():
        expired.wait(0.5)
        return {"run": RUN}

    assert get(serve(state=state) + "/api/run").json()["run"] == RUN


def test_a_connection_is_used_again_after_the_timeout(serve, monkeypatch):
    """The timeout of one request does not apply to the next."""
    monkeypatch.setattr(TimedH11Protocol, "request_timeout", 0.3)
    url = serve()
    with requests.Session() as session:
        for _ in range(8):
            assert session.get(url + "/-/healthy", timeout=TIMEOUT_SECONDS).ok
            time.sleep(0.1)


@pytest.mark.fault("H2")
@pytest.mark.parametrize("data", [b"", HALF_REQUEST, BODY_MISSING, REQUEST])
def test_more_idle_connections_than_permitted_keep_nobody_out(serve, connect, monkeypatch, data):
    """Without a timeout: the oldest are closed."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    monkeypatch.setattr(TimedH11Protocol, "request_timeout", 600.0)
    url = serve(registry=Exposition(Counters(), {}).registry)
    idle = []
    for _ in range(3):
        idle += [connect(url, data) for _ in range(30)]

        assert get(url + "/-/healthy").status_code == 200
        assert "sentinel_build_info" in get(url + "/metrics").text
    assert is_closed(idle[0])
    assert not is_closed(idle[-1])


def is_closed(peer):
    peer.setblocking(False)
    try:
        while received := peer.recv(1000):
            assert received
    except BlockingIOError:
        return False
    except ConnectionError:
        return True
    return True


@pytest.mark.fault("H2")
def test_connections_that_stop_in_the_tls_handshake_keep_nobody_out(
    serve, connect, monkeypatch, tmp_path
):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 20)
    certificate = make_certificate(tmp_path)
    config = tmp_path / "web.yml"
    config.write_text(f"tls_server_config: {{cert_file: {certificate}, key_file: {certificate}}}")
    url = serve(web_config_file=config)
    idle = [connect(url, b"\x16\x03\x01") for _ in range(60)]

    for path in ("/-/healthy", "/metrics"):
        assert requests.get(url + path, verify=certificate, timeout=TIMEOUT_SECONDS).ok
    assert is_closed(idle[0])


@pytest.mark.fault("H2")
def test_a_tls_handshake_has_a_timeout(serve, connect, monkeypatch, tmp_path):
    monkeypatch.setattr(TimedH11Protocol, "request_timeout", 0.2)
    certificate = make_certificate(tmp_path)
    config = tmp_path / "web.yml"
    config.write_text(f"tls_server_config: {{cert_file: {certificate}, key_file: {certificate}}}")

    assert read_until_closed(connect(serve(web_config_file=config), b"\x16\x03\x01")) == b""


def test_the_connection_of_the_peer_with_most_of_them_is_closed(serve, monkeypatch):
    """A peer with one idle connection does not lose it to one with many."""
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 10)
    url = serve()
    port = int(url.rpartition(":")[2])
    with ExitStack() as stack:

        def connect_from(address):
            opened = socket.create_connection(("127.0.0.1", port), source_address=(address, 0))
            return stack.enter_context(opened)

        lone = connect_from("127.0.0.2")
        lone.sendall(REQUEST)
        until(lambda: answered(lone), TIMEOUT_SECONDS, "the lone peer is answered")
        many = [connect_from("127.0.0.3") for _ in range(40)]
        assert get(url + "/-/healthy").ok

        assert is_closed(many[0])
        lone.sendall(REQUEST)
        lone.settimeout(TIMEOUT_SECONDS)
        assert read_twice(lone)


def answered(peer):
    return peer.recv(1000, socket.MSG_PEEK).endswith(b"ok\n")


def read_twice(peer):
    data = b""
    while data.count(b"ok\n") < 2:
        data += peer.recv(1000)
    return data


@pytest.mark.fault("H7")
def test_a_peer_that_reads_nothing_is_disconnected(serve, connect, monkeypatch):
    monkeypatch.setattr(TimedH11Protocol, "write_timeout", 0.2)
    done = threading.Event()
    url = serve(state=lambda: done.set() or {"run": "x" * 12_000_000})
    peer = connect(url, b"GET /api/run HTTP/1.1\r\nhost: localhost\r\n\r\n")
    assert done.wait(TIMEOUT_SECONDS)
    # The rest fits into no buffer of the system.
    time.sleep(1.0)

    assert len(read_until_closed(peer)) < 12_000_000
    assert get(url + "/-/healthy").ok


@pytest.mark.fault("H7")
def test_peers_that_disconnect_in_the_middle_of_a_response_leave_nothing(serve, connect):
    url = serve(state=lambda: {"run": "x" * 1_000_000})
    for _ in range(10):
        peer = connect(url, b"GET /api/run HTTP/1.1\r\nhost: localhost\r\n\r\n")
        peer.recv(100)
        peer.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, b"\1\0\0\0\0\0\0\0")
        peer.close()

    assert get(url + "/-/healthy").ok
    assert len(get(url + "/api/run").text) > 1_000_000


@pytest.mark.fault("H7")
def test_peers_that_read_nothing_keep_nobody_out(serve, connect, monkeypatch):
    monkeypatch.setattr(connections, "MAX_CONNECTIONS", 6)
    url = serve(state=lambda: {"run": "x" * 12_000_000})
    request = b"GET /api/run HTTP/1.1\r\nhost: localhost\r\n\r\n"
    peers = [connect(url, request) for _ in range(12)]

    assert get(url + "/-/healthy").ok
    assert any(map(is_reset, peers))


def is_reset(peer):
    """Whether the server closed the connection; reads all that was sent."""
    with suppress(TimeoutError):
        peer.settimeout(0.2)
        try:
            while peer.recv(1 << 20):
                pass
        except ConnectionResetError:
            pass
        return True
    return False


def test_tls_errors_of_one_client_do_not_affect_others(serve, connect, tmp_path):
    certificate = make_certificate(tmp_path)
    config = tmp_path / "web.yml"
    config.write_text(f"tls_server_config: {{cert_file: {certificate}, key_file: {certificate}}}")
    url = serve(web_config_file=config)
    connect(url, REQUEST)
    with pytest.raises(ssl.SSLError), connect(url) as plain:
        ssl.create_default_context().wrap_socket(plain, server_hostname="127.0.0.1")

    assert requests.get(url + "/-/healthy", verify=certificate, timeout=TIMEOUT_SECONDS).ok
