"""Board: a store that is shared, of which no trouble is worse than an error that says so."""

from __future__ import annotations

import socket
import threading
from contextlib import closing
from pathlib import Path

import pytest
from support.message_stores import PATIENCE, hosted, stranger

from sentinel.cluster import message_store as module
from sentinel.cluster.message_store import (
    MessageStore,
    MessageStoreError,
    bind_first_free_port,
    shutdown_connections,
)


@pytest.fixture(scope="module")
def shared():
    with hosted() as (board, port):
        yield board, port


def descriptors():
    """What is open, but the folder that says so."""
    paths = [*Path("/proc/self/fd").iterdir()]
    return {path.name: path.readlink() for path in paths if path.is_symlink()}


def test_what_one_leaves_the_other_reads(shared):
    ours, port = shared
    theirs = stranger(port)
    ours.write({"a": b"\0\xff", "b": b""})

    assert theirs.read(["b", "a"]) == [b"", b"\0\xff"]
    theirs.write({"a": b"x" * (1 << 20)})
    # Leaving waits for no answer, reading does.
    assert theirs.read(["a"]) == ours.read(["a"]) == [b"x" * (1 << 20)]


def test_a_peek_tells_what_is_there_and_leaves_it_so(shared):
    board, port = shared
    board.write({"seen": b"\0\xff", "blank": b""})

    for _ in range(2):
        assert [stranger(port).peek(key) for key in ("seen", "blank", "none")] == [
            b"\0\xff",
            b"",
            None,
        ]
    assert not board.has("none")


def test_nothing_is_left_or_removed_where_nothing_is_told(shared):
    board, _ = shared
    board.write({})
    board.remove([])
    board.remove(["never there"])


def test_a_number_is_counted_up_by_all(shared):
    ours, port = shared
    theirs = stranger(port)

    assert [ours.count("n"), theirs.increment("n", 5), ours.count("n", 0)] == [1, 6, 6]


def test_what_is_removed_is_there_no_more(shared):
    board, _ = shared
    board.write({"gone": b"1"})
    assert board.has("gone")

    board.remove(["gone"])

    assert not board.has("gone")


def test_what_is_not_there_is_an_error_in_plain_words_and_all_else_goes_on(shared):
    board, _ = shared
    board.write({"here": b"1"})

    with pytest.raises(MessageStoreError, match="does not answer"):
        board.read(["here", "nowhere"])
    assert board.read(["here"]) == [b"1"]


def test_who_counts_up_what_is_no_number_harms_nobody_else(shared):
    ours, port = shared
    theirs = stranger(port)
    theirs.write({"number": b"none"})

    with pytest.raises(MessageStoreError):
        theirs.increment("number")
    assert ours.read(["number"]) == [b"none"]
    assert stranger(port).read(["number"]) == [b"none"]


@pytest.mark.parametrize(
    "said", [b"GET / HTTP/1.1\r\n\r\n", b"\0" * 4096, b"\xff" * 4096, bytes(range(256)) * 64]
)
def test_whoever_speaks_another_language_to_the_store_harms_nobody(shared, said):
    ours, port = shared
    ours.write({"here": b"1"})
    with closing(socket.create_connection(("127.0.0.1", port), PATIENCE)) as other:
        other.sendall(said)

    assert ours.read(["here"]) == [b"1"]
    assert stranger(port).read(["here"]) == [b"1"]


def test_where_nobody_listens_is_an_error_at_once():
    with closing(socket.create_server(("127.0.0.1", 0))) as free:
        port = free.getsockname()[1]

    with pytest.raises(MessageStoreError, match=f"Nobody answers at 127.0.0.1:{port}"):
        MessageStore.connect("127.0.0.1", port)


def test_a_host_without_a_name_is_an_error():
    with pytest.raises(MessageStoreError, match="Nobody answers"):
        MessageStore.connect("no such host", 1)


def test_a_store_that_was_closed_is_an_error():
    with hosted() as (_, port):
        theirs = stranger(port)
        theirs.write({"a": b"1"})

    with pytest.raises(MessageStoreError):
        theirs.read(["a"])
    theirs.close()
    with pytest.raises(MessageStoreError):
        theirs.read(["a"])


def test_a_server_that_never_answers_is_given_up_once_it_is_cut():
    """A store's client waits for it for ever."""
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
        knock, _ = silent.accept()
        client, _ = silent.accept()
        while thread.is_alive():
            shutdown_connections(port)
            thread.join(0.1)
        knock.close()
        client.close()

    assert len(errors) == 1


def test_a_cut_ends_the_connections_to_that_port_and_leaves_nothing_open(tmp_path):
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as one,
        closing(socket.create_server(("127.0.0.1", 0))) as other,
        (tmp_path / "file").verify("wb"),
        closing(socket.socket(socket.AF_UNIX)),
        closing(socket.create_connection(one.getsockname())) as doomed,
        closing(socket.create_connection(other.getsockname())) as spared,
    ):
        before = descriptors()
        for _ in range(5):
            shutdown_connections(one.getsockname()[1])
        assert descriptors() == before
        assert doomed.recv(1) == b""
        server, _ = other.accept()
        server.sendall(b"x")
        assert spared.recv(1) == b"x"
        server.close()


def test_without_torch_the_port_is_free_again_and_the_error_says_what_is_missing(monkeypatch):
    def nothing(name):
        raise ImportError(name)

    monkeypatch.setattr(module, "import_module", nothing)
    place = bind_first_free_port((0,))
    with closing(place), pytest.raises(MessageStoreError, match="torch is not installed"):
        MessageStore.host(place)
    assert place.fileno() == -1


def test_the_first_port_that_is_free_is_taken():
    with closing(bind_first_free_port((0,))) as taken:
        port = taken.getsockname()[1]
        with closing(bind_first_free_port((port, 0))) as next_one:
            assert next_one.getsockname()[1] != port
        with pytest.raises(MessageStoreError, match="set \\[cluster\\] head"):
            bind_first_free_port((port,))
