"""Timeout of incomplete requests."""

import socket
import threading
from contextlib import suppress

import pytest
from support.rank_processes import until
from support.results import RUN
from support.web_servers import TIMEOUT_SECONDS, get, servers

from sentinel.web.server import TimeoutH11Protocol

REQUEST = b"GET /-/healthy HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def serve():
    with servers() as start:
        yield start


@pytest.mark.parametrize(
    "data", [b"", REQUEST[:20], REQUEST + REQUEST[:20]], ids=["nothing", "half", "one_and_a_half"]
)
def test_a_connection_with_an_incomplete_request_is_closed(serve, monkeypatch, data):
    """The timeout applies to the first request and to every later one."""
    short = 0.2
    # A complete first request may take as long as a busy machine needs.
    monkeypatch.setattr(
        TimeoutH11Protocol,
        "timeout_seconds",
        short if len(data) < len(REQUEST) else TIMEOUT_SECONDS,
    )
    port = int(serve().rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=TIMEOUT_SECONDS / 2) as peer:
        with suppress(ConnectionError):
            peer.sendall(data[: len(REQUEST)])
        if len(data) > len(REQUEST):
            until(lambda: answered(peer), TIMEOUT_SECONDS, "the first request is answered")
            monkeypatch.setattr(TimeoutH11Protocol, "timeout_seconds", short)
            peer.sendall(data[len(REQUEST) :])
        response = read_until_closed(peer)

    assert response.count(b"HTTP/1.1 ") == len(data) // len(REQUEST)


def answered(peer):
    return peer.recv(1000, socket.MSG_PEEK).endswith(b"ok\n")


def read_until_closed(peer):
    """All data until the server closes the connection; fails after the timeout of the socket."""
    response = b""
    with suppress(ConnectionResetError):
        while chunk := peer.recv(1000):
            response += chunk
    return response


def test_a_complete_request_may_wait_for_its_response(serve, monkeypatch):
    connections, original = [], TimeoutH11Protocol.connection_made

    def connection_made(self, transport):
        connections.append(self)
        original(self, transport)

    def state():
        """The timeout expires while the response is computed."""
        (connection,), expired = connections, threading.Event()
        connection.loop.call_soon_threadsafe(connection._abort_if_unfinished, None)
        connection.loop.call_soon_threadsafe(expired.set)
        return {"run": RUN, "expired": expired.wait(TIMEOUT_SECONDS)}

    monkeypatch.setattr(TimeoutH11Protocol, "connection_made", connection_made)
    monkeypatch.setattr(TimeoutH11Protocol, "timeout_seconds", TIMEOUT_SECONDS)
    url = serve(state=state)

    assert get(url + "/api/run").json() == {"run": RUN, "expired": True}


def test_idle_connections_block_others_only_until_their_timeout(serve, monkeypatch):
    expired, abort = threading.Event(), TimeoutH11Protocol._abort_if_unfinished

    def abort_once_expired(self, last):
        if expired.is_set():
            abort(self, last)
        else:
            self.loop.call_later(self.timeout_seconds, self._abort_if_unfinished, last)

    monkeypatch.setattr(TimeoutH11Protocol, "_abort_if_unfinished", abort_once_expired)
    monkeypatch.setattr(TimeoutH11Protocol, "timeout_seconds", 0.2)
    url = serve()
    port = int(url.rpartition(":")[2])
    idle = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
    try:
        assert get(url + "/metrics").status_code == 503
        expired.set()
        until(
            lambda: get(url + "/metrics").status_code == 200,
            TIMEOUT_SECONDS,
            "a scrape is answered",
        )
    finally:
        for connection in idle:
            connection.close()
