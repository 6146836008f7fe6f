"""Patience: who does not finish a request is hung up on, and nobody else."""

import socket
import threading
from contextlib import suppress

import pytest
from support.rank_processes import until
from support.results import RUN
from support.web_servers import PATIENCE, get, servers

from sentinel.web.server import TimeoutH11Protocol

WHOLE = b"GET /-/healthy HTTP/1.1\r\nhost: localhost\r\n\r\n"


@pytest.fixture
def serve():
    with servers() as start:
        yield start


@pytest.mark.parametrize(
    "said", [b"", WHOLE[:20], WHOLE + WHOLE[:20]], ids=["nothing", "half", "1½"]
)
def test_who_never_finishes_a_request_is_hung_up_on(serve, monkeypatch, said):
    """Silent and slow connections are closed, the first request and every later one."""
    short = 0.2
    # A first request that is whole may take as long as this machine needs to see it.
    monkeypatch.setattr(
        TimeoutH11Protocol, "timeout_seconds", short if len(said) < len(WHOLE) else PATIENCE
    )
    port = int(serve().rpartition(":")[2])
    with socket.create_connection(("127.0.0.1", port), timeout=PATIENCE / 2) as peer:
        with suppress(ConnectionError):
            peer.sendall(said[: len(WHOLE)])
        if len(said) > len(WHOLE):
            until(lambda: answered(peer), PATIENCE, "the first is answered")
            monkeypatch.setattr(TimeoutH11Protocol, "timeout_seconds", short)
            peer.sendall(said[len(WHOLE) :])
        heard = all_of(peer)

    assert heard.count(b"HTTP/1.1 ") == len(said) // len(WHOLE)


def answered(peer):
    return peer.recv(1000, socket.MSG_PEEK).endswith(b"ok\n")


def all_of(peer):
    """What comes until the other side hangs up; the socket's time-out says if it does not."""
    heard = b""
    with suppress(ConnectionResetError):
        while piece := peer.recv(1000):
            heard += piece
    return heard


def test_a_whole_request_may_wait_for_its_answer(serve, monkeypatch):
    """Slow answers are not cut off: only slow questions are."""
    connections, made = [], TimeoutH11Protocol.connection_made

    def connection_made(self, transport):
        connections.append(self)
        made(self, transport)

    def state():
        """Patience ends while the answer is being made."""
        (asked,), over = connections, threading.Event()
        asked.loop.call_soon_threadsafe(asked._abort_if_unfinished, None)
        asked.loop.call_soon_threadsafe(over.set)
        return {"run": RUN, "over": over.wait(PATIENCE)}

    monkeypatch.setattr(TimeoutH11Protocol, "connection_made", connection_made)
    monkeypatch.setattr(TimeoutH11Protocol, "timeout_seconds", PATIENCE)
    url = serve(state=state)

    assert get(url + "/api/run").json() == {"run": RUN, "over": True}


def test_hundreds_of_silent_connections_keep_nobody_out_for_long(serve, monkeypatch):
    """Once the server's patience with them is over, a scrape is answered."""
    over, hang_up = threading.Event(), TimeoutH11Protocol._abort_if_unfinished

    def hang_up_then(self, last):
        if over.is_set():
            hang_up(self, last)
        else:
            self.loop.call_later(self.timeout_seconds, self._abort_if_unfinished, last)

    monkeypatch.setattr(TimeoutH11Protocol, "_abort_if_unfinished", hang_up_then)
    monkeypatch.setattr(TimeoutH11Protocol, "timeout_seconds", 0.2)
    url = serve()
    port = int(url.rpartition(":")[2])
    silent = [socket.create_connection(("127.0.0.1", port)) for _ in range(300)]
    try:
        assert get(url + "/metrics").status_code == 503
        over.set()
        until(lambda: get(url + "/metrics").status_code == 200, PATIENCE, "a scrape is answered")
    finally:
        for one in silent:
            one.close()
