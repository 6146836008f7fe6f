"""The message store is shared, and every failure of it is a MessageStoreError."""

from __future__ import annotations

import os
import signal
import socket
from concurrent.futures import ThreadPoolExecutor, wait
from contextlib import closing
from pathlib import Path

import psutil
import pytest
from floods import flood_with_half_message
from support.message_stores import TIMEOUT_SECONDS, connect_outsider, hosted_store
from support.rank_processes import until

from sentinel.cluster import torch_store as module
from sentinel.cluster.message_store import MessageStore, StoreProcessError
from sentinel.cluster.sockets import NoFreePortError, bind_first_free_port
from sentinel.cluster.torch_store import MessageStoreError, TorchStore


@pytest.fixture(scope="module")
def shared():
    with hosted_store() as (store, port):
        yield store, port


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
        TorchStore.connect("127.0.0.1", port)


def test_an_unknown_host_is_an_error():
    with pytest.raises(MessageStoreError, match="No answer"):
        TorchStore.connect("no such host", 1)


def test_calls_to_a_closed_store_are_errors():
    with hosted_store() as (_, port):
        outsider = connect_outsider(port)
        outsider.write({"a": b"1"})

    with pytest.raises(MessageStoreError):
        outsider.read(["a"])
    outsider.close()
    with pytest.raises(MessageStoreError):
        outsider.read(["a"])


def test_without_torch_the_port_is_closed_and_the_error_names_it(monkeypatch):
    def raise_import_error(name):
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", raise_import_error)
    listener = bind_first_free_port((0,))
    with closing(listener), pytest.raises(MessageStoreError, match="torch is not installed"):
        TorchStore.host(listener)
    assert listener.fileno() == -1


def test_the_first_free_port_is_bound():
    with closing(bind_first_free_port((0,))) as taken:
        port = taken.getsockname()[1]
        with closing(bind_first_free_port((port, 0))) as next_free:
            assert next_free.getsockname()[1] != port
        with pytest.raises(NoFreePortError, match="set \\[cluster\\] head"):
            bind_first_free_port((port,))


@pytest.fixture(scope="module")
def apart():
    """A store in a process of its own, and its port."""
    listener = bind_first_free_port((0,))
    port = listener.getsockname()[1]
    store = MessageStore.host(listener)
    yield store, port
    store.close()


def test_a_store_in_its_own_process_has_the_same_methods(apart):
    store, port = apart
    outsider = connect_outsider(port)
    store.write({"a": b"\0\xff", "b": b""})
    store.write({})

    assert store.read(["b", "a"]) == outsider.read(["b", "a"]) == [b"", b"\0\xff"]
    assert [store.peek(key) for key in ("a", "b", "none")] == [b"\0\xff", b"", None]
    assert [store.has("a"), store.has("none")] == [True, False]
    assert [store.increment("n"), outsider.increment("n", 5), store.increment("n", 0)] == [1, 6, 6]
    assert store.count_keys() == outsider.count_keys()
    store.remove(["a"])
    assert not outsider.has("a")
    with pytest.raises(MessageStoreError, match="does not answer"):
        store.read(["none"])


def test_a_store_in_its_own_process_connects_to_one_store_after_the_other(apart):
    _, port = apart
    client = MessageStore()
    with pytest.raises(MessageStoreError, match="is closed"):
        client.has("a")
    with pytest.raises(MessageStoreError, match=r"No answer at 127\.0\.0\.1:9"):
        client.connect("127.0.0.1", 9)
    with hosted_store() as (other, other_port):
        other.write({"other": b"1"})
        for _ in range(2):
            client.connect("127.0.0.1", other_port)
            assert client.has("other")
            client.connect("127.0.0.1", port)
            assert not client.has("other")
    client.disconnect()
    with pytest.raises(MessageStoreError, match="no connection"):
        client.has("a")
    client.close()
    with pytest.raises(MessageStoreError):
        client.connect("127.0.0.1", port)


def test_the_process_of_a_store_ignores_signals_of_schedulers_and_is_killed_first(apart):
    store, _ = apart
    child = psutil.Process(store._process.pid)
    for number in (signal.SIGTERM, signal.SIGINT, signal.SIGHUP):
        os.kill(child.pid, number)

    assert store.count_keys() >= 0
    assert MessageStore._can_load_core
    assert Path(f"/proc/{child.pid}/oom_score_adj").read_text().strip() == "1000"


def fill(store):
    for number in range(20):
        store.write({f"large/{number}": bytes(7 << 20)})
        store.count_keys()


@pytest.mark.fault("X18")
def test_a_message_beyond_the_memory_limit_harms_only_its_sender():
    listener = bind_first_free_port((0,))
    port = listener.getsockname()[1]
    store = MessageStore.host(listener)
    try:
        store.write({"here": b"1"})
        store.limit_memory(32 << 20)
        outsider = connect_outsider(port)
        with pytest.raises(MessageStoreError):
            fill(outsider)
        assert 8 << 20 < store.memory_bytes <= 33 << 20
        assert store.read(["here"]) == [b"1"]
    finally:
        store.close()


@pytest.mark.fault("X18")
def test_what_fills_a_store_while_it_is_opened_counts(monkeypatch):
    """Connections wait at the port, where the last store was."""
    listener = bind_first_free_port((0,))
    address = ("127.0.0.1", listener.getsockname()[1])
    call = MessageStore._call
    with ThreadPoolExecutor() as pool:
        senders = [pool.submit(flood_with_half_message, address) for _ in range(4)]

        def open_slowly(store, name, *arguments):
            result = call(store, name, *arguments)
            if name == "host":
                wait(senders, TIMEOUT_SECONDS)
            return result

        monkeypatch.setattr(MessageStore, "_call", open_slowly)
        store = MessageStore.host(listener)
    try:
        until(lambda: store.memory_bytes > 24 << 20, TIMEOUT_SECONDS, "the messages arrive")
    finally:
        store.close()
        for sender in senders:
            sender.result().close()


def test_the_end_of_the_process_is_an_error_at_once():
    listener = bind_first_free_port((0,))
    store = MessageStore.host(listener)
    os.kill(store._process.pid, signal.SIGKILL)

    with pytest.raises(StoreProcessError, match="ended"):
        store.count_keys()
    with pytest.raises(MessageStoreError, match="is closed"):
        store.count_keys()
    store.close()


def test_a_version_of_torch_with_other_internal_modules_is_loaded_as_a_whole(monkeypatch, tmp_path):
    """The one of this test has neither, which is the error of an environment without torch."""
    (tmp_path / "torch").mkdir()
    (tmp_path / "torch" / "__init__.py").touch()
    monkeypatch.setenv("PYTHONPATH", str(tmp_path))
    monkeypatch.setattr(MessageStore, "_can_load_core", True)

    with pytest.raises(MessageStoreError, match="torch is not installed"):
        MessageStore.host(bind_first_free_port((0,)))
    assert not MessageStore._can_load_core
