"""The message store is shared, and every failure of it is a MessageStoreError."""

from __future__ import annotations

import gc
import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest
from support.message_stores import TIMEOUT_SECONDS, connect_outsider, hosted_store

from sentinel.cluster import message_store as module
from sentinel.cluster.message_store import MessageStore, MessageStoreError
from sentinel.cluster.sockets import NoFreePortError, bind_first_free_port, shutdown_connections


@pytest.fixture(scope="module")
def shared():
    with hosted_store() as (store, port):
        yield store, port


def descriptors():
    """The open file descriptors, without that of the listing itself."""
    paths = [*Path("/proc/self/fd").iterdir()]
    return {path.name: path.readlink() for path in paths if path.is_symlink()}


def test_a_value_is_read_by_other_connections(shared):
    ours, port = shared
    outsider = connect_outsider(port)
    ours.write({"a": b"\0\xff", "b": b""})

    assert outsider.read(["b", "a"]) == [b"", b"\0\xff"]
    outsider.write({"a": b"x" * (1 << 20)})
    # A write does not wait for the store, a read does.
    assert outsider.read(["a"]) == ours.read(["a"]) == [b"x" * (1 << 20)]


def test_a_peek_returns_the_value_and_creates_no_key(shared):
    store, port = shared
    store.write({"seen": b"\0\xff", "blank": b""})

    for _ in range(2):
        assert [connect_outsider(port).peek(key) for key in ("seen", "blank", "none")] == [
            b"\0\xff",
            b"",
            None,
        ]
    assert not store.has("none")


def test_writing_and_removing_nothing_is_valid(shared):
    store, _ = shared
    store.write({})
    store.remove([])
    store.remove(["never there"])


def test_a_number_is_incremented_by_all_connections(shared):
    ours, port = shared
    outsider = connect_outsider(port)

    assert [ours.increment("n"), outsider.increment("n", 5), ours.increment("n", 0)] == [1, 6, 6]


def test_a_removed_key_is_absent(shared):
    store, _ = shared
    store.write({"gone": b"1"})
    assert store.has("gone")

    store.remove(["gone"])

    assert not store.has("gone")


def test_reading_an_absent_key_is_an_error_and_the_store_continues(shared):
    store, _ = shared
    store.write({"here": b"1"})

    with pytest.raises(MessageStoreError, match="does not answer"):
        store.read(["here", "nowhere"])
    assert store.read(["here"]) == [b"1"]


def test_incrementing_a_text_is_an_error_and_the_store_continues(shared):
    ours, port = shared
    outsider = connect_outsider(port)
    outsider.write({"number": b"none"})

    with pytest.raises(MessageStoreError):
        outsider.increment("number")
    assert ours.read(["number"]) == [b"none"]
    assert connect_outsider(port).read(["number"]) == [b"none"]


@pytest.mark.parametrize(
    "data", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, b"\xff" * 4096, bytes(range(256)) * 64]
)
def test_bytes_of_another_protocol_do_not_harm_the_store(shared, data):
    ours, port = shared
    ours.write({"here": b"1"})
    with closing(socket.create_connection(("127.0.0.1", port), TIMEOUT_SECONDS)) as client:
        client.sendall(data)

    assert ours.read(["here"]) == [b"1"]
    assert connect_outsider(port).read(["here"]) == [b"1"]


def test_a_closed_port_is_an_error_at_once():
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]

    with pytest.raises(MessageStoreError, match=f"No answer at 127.0.0.1:{port}"):
        MessageStore.connect("127.0.0.1", port)


def test_an_unknown_host_is_an_error():
    with pytest.raises(MessageStoreError, match="No answer"):
        MessageStore.connect("no such host", 1)


def test_calls_to_a_closed_store_are_errors():
    with hosted_store() as (_, port):
        outsider = connect_outsider(port)
        outsider.write({"a": b"1"})

    with pytest.raises(MessageStoreError):
        outsider.read(["a"])
    outsider.close()
    with pytest.raises(MessageStoreError):
        outsider.read(["a"])


def test_a_blocked_call_raises_once_its_connection_is_shut_down():
    """The client of a TCPStore would wait for ever."""
    errors = []

    def join(port):
        try:
            MessageStore.connect("127.0.0.1", port)
        except MessageStoreError as error:
            errors.append(error)

    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        port = silent.getsockname()[1]
        thread = threading.Thread(target=join, args=(port,), daemon=True)
        thread.start()
        probe, _ = silent.accept()
        client, _ = silent.accept()
        while thread.is_alive():
            shutdown_connections(port)
            thread.join(0.1)
        probe.close()
        client.close()

    assert len(errors) == 1


def test_a_shutdown_ends_connections_to_that_port_only_and_leaks_nothing(tmp_path):
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as one,
        closing(socket.create_server(("127.0.0.1", 0))) as other,
        (tmp_path / "file").open("wb"),
        closing(socket.socket(socket.AF_UNIX)),
        closing(socket.create_connection(one.getsockname())) as target,
        closing(socket.create_connection(other.getsockname())) as untouched,
    ):
        # Frees what earlier tests left open.
        gc.collect()
        before = descriptors()
        for _ in range(5):
            shutdown_connections(one.getsockname()[1])
        assert descriptors() == before
        assert target.recv(1) == b""
        server, _ = other.accept()
        server.sendall(b"x")
        assert untouched.recv(1) == b"x"
        server.close()


def test_without_torch_the_port_is_closed_and_the_error_names_it(monkeypatch):
    def raise_import_error(name):
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", raise_import_error)
    listener = bind_first_free_port((0,))
    with closing(listener), pytest.raises(MessageStoreError, match="torch is not installed"):
        MessageStore.host(listener)
    assert listener.fileno() == -1


def test_the_first_free_port_is_bound():
    with closing(bind_first_free_port((0,))) as taken:
        port = taken.getsockname()[1]
        with closing(bind_first_free_port((port, 0))) as next_free:
            assert next_free.getsockname()[1] != port
        with pytest.raises(NoFreePortError, match="set \\[cluster\\] head"):
            bind_first_free_port((port,))
