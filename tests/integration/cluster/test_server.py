"""A server accepts messages that are signed with its token, and counts all others."""

from __future__ import annotations

import json
import os
import signal
import socket
from contextlib import suppress

import pytest
from support.message_stores import (
    AUTHENTICATOR,
    TIMEOUT_SECONDS,
    LocalStore,
    accept_client,
    await_condition,
    connect_outsider,
    free_ports,
    read_instance_id,
    refusal_counts,
    running_client,
    running_server,
)

from sentinel.cluster import server as module
from sentinel.cluster.authentication import MessageAuthenticator
from sentinel.cluster.message_store import MessageStore
from sentinel.cluster.protocol import (
    ACK_STRUCT,
    HEAD_INFO_KEY,
    MAX_MESSAGE_BYTES,
    PROTOCOL_VERSION,
    SLOT_COUNTER_KEY,
    HeadInfo,
    slot_keys,
)
from sentinel.cluster.sockets import bind_first_free_port
from sentinel.cluster.torch_store import MessageStoreError


@pytest.fixture
def server():
    with running_server() as server:
        yield server


@pytest.fixture
def outsider(server):
    """A connection to the store without a client."""
    return connect_outsider(server.port)


def write_hello(store, authenticator=AUTHENTICATOR, node_info=None, message=None):
    """Take a slot and write a hello there, with that node info or as these bytes."""
    slot = store.increment(SLOT_COUNTER_KEY)
    keys = slot_keys(slot)
    body = json.dumps({"host": "b"} if node_info is None else node_info).encode()
    if message is None:
        message = authenticator.sign(f"{keys.hello}/{read_instance_id(store)}", body)
    store.write({keys.mailbox: b"", keys.ack: b"", keys.hello: message})
    return slot


def read_ack(store, slot):
    """The newest acknowledgement in that slot, once there is one."""
    ack = slot_keys(slot).ack
    message = await_condition(lambda: store.read([ack])[0], "an ack")
    return ACK_STRUCT.unpack(AUTHENTICATOR.verify(f"{ack}/{read_instance_id(store)}", message))


def write_message(store, slot, body, authenticator=AUTHENTICATOR):
    mailbox = slot_keys(slot).mailbox
    store.write({mailbox: authenticator.sign(f"{mailbox}/{read_instance_id(store)}", body)})


def is_mailbox_empty(store, slot):
    return not store.read([slot_keys(slot).mailbox])[0]


def await_refusal(server, reason, count=1.0):
    await_condition(
        lambda: refusal_counts(server.counters).get(reason, 0.0) >= count, f"{reason} is counted"
    )


def accepts_new_node(server, store):
    """Whether a new node is accepted and its message received."""
    slot = write_hello(store, node_info={"host": "new"})
    found = await_condition(lambda: [h for h in server.drain_hellos() if h.slot == slot], "a hello")
    server.acknowledge(slot, 0, 3)
    assert read_ack(store, slot) == (0, 3, 0)
    write_message(store, slot, b"message")
    received = await_condition(
        lambda: [each for each in server.drain_messages() if each[0] == slot], "a message"
    )
    return found[0].node_info == {"host": "new"} and received == [(slot, b"message")]


def join(server, outsider):
    """The slot of a node whose hello is acknowledged."""
    slot = write_hello(outsider)
    await_condition(server.drain_hellos, "a hello")
    server.acknowledge(slot, 0, 0)
    read_ack(outsider, slot)
    return slot


def test_a_node_is_accepted_and_sends_one_message_at_a_time(server, outsider):
    slot = write_hello(outsider, node_info={"host": "b", "number": 7})
    (hello,) = await_condition(server.drain_hellos, "a hello")
    assert (hello.slot, hello.node_info) == (slot, {"host": "b", "number": "7"})
    server.acknowledge(slot, 0, 41, is_deputy=True)
    assert read_ack(outsider, slot) == (0, 41, 1)

    write_message(outsider, slot, b"first")
    assert await_condition(server.drain_messages, "a message") == [(slot, b"first")]
    assert not is_mailbox_empty(outsider, slot), (
        "a mailbox stays full until its message is acknowledged"
    )
    server.acknowledge(slot, 1, 42)
    await_condition(lambda: read_ack(outsider, slot) == (1, 42, 0), "the ack")
    assert is_mailbox_empty(outsider, slot)
    write_message(outsider, slot, b"second")
    assert await_condition(server.drain_messages, "a message") == [(slot, b"second")]


def test_the_keys_of_a_dropped_slot_are_deleted(server, outsider):
    slot = join(server, outsider)

    server.drop_slot(slot)

    await_condition(lambda: not any(map(outsider.has, slot_keys(slot))), "the keys are deleted")
    assert accepts_new_node(server, outsider)


@pytest.mark.fault("X11")
@pytest.mark.parametrize(
    ("authenticator", "message", "reason"),
    [
        (MessageAuthenticator.for_job("wrong", "job"), None, "token"),
        (AUTHENTICATOR, bytes([PROTOCOL_VERSION + 1]) + bytes(100), "version"),
        (AUTHENTICATOR, b"", "damaged"),
        (AUTHENTICATOR, b"\xff" * 5_000_000, "version"),
        (AUTHENTICATOR, AUTHENTICATOR.sign("another purpose", b"{}"), "token"),
    ],
    ids=["token", "version", "empty", "huge", "replayed"],
)
def test_an_invalid_hello_is_counted_and_ignored(server, outsider, authenticator, message, reason):
    write_hello(outsider, authenticator, message=message)

    await_refusal(server, reason)
    assert server.drain_hellos() == []
    assert accepts_new_node(server, outsider)


@pytest.mark.parametrize("node_info", [[], 7, "text", None, [["a", "b"]]])
def test_a_signed_hello_with_an_invalid_node_info_is_counted(server, outsider, node_info):
    key = slot_keys(outsider.increment(SLOT_COUNTER_KEY, 0) + 1).hello
    body = json.dumps(node_info).encode()
    message = AUTHENTICATOR.sign(f"{key}/{read_instance_id(outsider)}", body)
    write_hello(outsider, message=message)

    await_refusal(server, "damaged")
    assert accepts_new_node(server, outsider)


def test_garbage_in_a_mailbox_is_counted_and_the_node_can_send_again(server, outsider):
    slot = join(server, outsider)

    mailbox = slot_keys(slot).mailbox
    outsider.write({mailbox: b"garbage" * 9})
    await_refusal(server, "version")
    write_message(outsider, slot, b"message", MessageAuthenticator.for_job("wrong", "job"))
    await_refusal(server, "token")
    outsider.write({mailbox: b"\xff" * (MAX_MESSAGE_BYTES + 1000)})
    await_refusal(server, "too_large")
    write_message(outsider, slot, b"message")
    assert await_condition(server.drain_messages, "a message") == [(slot, b"message")]


def test_a_message_of_the_maximum_size_is_received(server, outsider):
    slot = join(server, outsider)
    write_message(outsider, slot, b"x" * MAX_MESSAGE_BYTES)

    ((_, body),) = await_condition(server.drain_messages, "a message")
    assert len(body) == MAX_MESSAGE_BYTES


def test_mailboxes_stay_full_while_too_many_bytes_are_not_drained(server, outsider, monkeypatch):
    monkeypatch.setattr(module, "MAX_RECEIVED_BYTES", 10)
    slots = [write_hello(outsider), write_hello(outsider)]
    hellos = []
    await_condition(lambda: hellos.extend(server.drain_hellos()) or len(hellos) == 2, "two hellos")
    for slot in slots:
        server.acknowledge(slot, 0, 0)
    for slot in slots:
        read_ack(outsider, slot)
    write_message(outsider, slots[0], b"x" * 20)
    await_condition(lambda: server._received, "a message")
    write_message(outsider, slots[1], b"second")
    outsider.read([HEAD_INFO_KEY])
    await_poll(server, outsider)
    assert len(server._received) == 1

    assert await_condition(server.drain_messages, "the first message") == [(slots[0], b"x" * 20)]
    assert await_condition(server.drain_messages, "the second message") == [(slots[1], b"second")]


def await_poll(server, store):
    """Wait until the server has polled everything once more."""
    slot = write_hello(store, MessageAuthenticator.for_job("wrong", "job"))
    await_refusal(server, "token", refusal_counts(server.counters).get("token", 0.0) + 1.0)
    server.drop_slot(slot)
    await_condition(lambda: not store.has(slot_keys(slot).hello), "two polls")


def test_slots_without_a_hello_exclude_no_node(server, outsider, monkeypatch):
    monkeypatch.setattr(module, "MAX_EMPTY_POLLS", 2)
    outsider.increment(SLOT_COUNTER_KEY, 1000)

    await_refusal(server, "too_many", 1000.0 - 2 * module.MAX_PENDING_JOINS)
    assert accepts_new_node(server, outsider)


@pytest.mark.parametrize("count", [b"0", b"-5", b"garbage", b"9" * 15, b"9" * 18, b""])
def test_an_invalid_slot_counter_excludes_no_node(server, outsider, count):
    assert accepts_new_node(server, outsider)

    outsider.write({SLOT_COUNTER_KEY: count})

    await_refusal(server, "damaged")
    assert accepts_new_node(server, outsider)
    assert accepts_new_node(server, outsider)


def test_a_deleted_slot_counter_excludes_no_node(server, outsider):
    assert accepts_new_node(server, outsider)
    before = read_instance_id(outsider)

    outsider.remove([SLOT_COUNTER_KEY])

    await_refusal(server, "damaged")
    assert accepts_new_node(server, outsider)
    assert read_instance_id(outsider) == before


def test_a_deleted_mailbox_does_not_affect_the_others(server, outsider):
    slots = [write_hello(outsider), write_hello(outsider)]
    hellos = []
    await_condition(lambda: hellos.extend(server.drain_hellos()) or len(hellos) == 2, "two hellos")
    for slot in slots:
        server.acknowledge(slot, 0, 0)
    for slot in slots:
        read_ack(outsider, slot)
    before = read_instance_id(outsider)

    outsider.remove([slot_keys(slots[0]).mailbox])
    await_refusal(server, "damaged")
    write_message(outsider, slots[1], b"message")

    assert await_condition(server.drain_messages, "a message") == [(slots[1], b"message")]
    assert read_instance_id(outsider) == before


def test_a_node_beyond_the_maximum_is_counted_and_ignored(server, outsider, monkeypatch):
    monkeypatch.setattr(module, "MAX_SLOTS", 1)
    join(server, outsider)

    write_hello(outsider)

    await_refusal(server, "too_many")
    assert server.drain_hellos() == []


def test_the_head_info_has_the_redirect_address(server, outsider):
    server.redirect_to = "gpu-b:7000"

    def is_published():
        (message,) = outsider.read([HEAD_INFO_KEY])
        head = HeadInfo.deserialize(AUTHENTICATOR.verify(HEAD_INFO_KEY, message))
        return head.redirect_to == "gpu-b:7000"

    await_condition(is_published, "the redirect is published")


def accepts_connections(address, port):
    try:
        socket.create_connection((address, port), timeout=5).close()
    except ConnectionRefusedError:
        return False
    return True


def test_a_server_listens_only_at_the_interface_of_its_host():
    """127.0.0.2 stands for another interface of this node, which tests cannot rely on."""
    with running_server(listen_host="127.0.0.1") as server:
        assert server.listen_address == "127.0.0.1"
        assert accepts_connections("127.0.0.1", server.port)
        assert not accepts_connections("127.0.0.2", server.port)
        assert not accepts_connections("::1", server.port)
        with running_client(server.port) as client:
            accept_client(server, client)


@pytest.mark.parametrize("host", ["", "198.51.100.77", "no-such-host.invalid"])
def test_a_server_listens_at_all_interfaces_if_its_host_is_none_of_this_node(host):
    with running_server(listen_host=host) as server:
        assert server.listen_address == ""
        assert accepts_connections("127.0.0.1", server.port)
        assert accepts_connections("127.0.0.2", server.port)


def test_a_server_retries_while_its_port_is_taken(monkeypatch):
    monkeypatch.setattr(module, "RETRY_DELAY_SECONDS", 0.1)
    listener = bind_first_free_port((0,))
    port = listener.getsockname()[1]
    server = module.ClusterServer(
        (port,), AUTHENTICATOR, module.Counters(), open_store=LocalStore.host
    )
    server.start()
    try:
        await_condition(lambda: "is free" in server.error, "the error")
        assert server.port == 0
        listener.close()
        await_condition(lambda: server.port == port, "the server listens")
        assert server.error == ""
    finally:
        server.stop(TIMEOUT_SECONDS)


@pytest.mark.swallows_errors
def test_pending_acks_of_a_failed_store_reach_no_other_node(monkeypatch):
    """A new store has other slots: an ack with the rows of another node would lose records."""
    monkeypatch.setattr(module, "RETRY_DELAY_SECONDS", 0.1)
    ports = free_ports()
    with running_server(ports) as server, running_client(ports[0]) as client:
        first = accept_client(server, client, last_row=5)
        failures = iter([True])
        poll_store = server._poll_store

        def fail_once(store):
            if next(failures, False):
                raise MessageStoreError("The store failed.")
            poll_store(store)

        monkeypatch.setattr(server, "_poll_store", fail_once)
        await_condition(lambda: not client.is_connected, "the client is disconnected")
        server.acknowledge(first.slot, 7, 999)
        again = accept_client(server, client, last_row=6)

        assert again.slot > first.slot
        assert (client.last_ack.message_number, client.last_ack.last_row) == (0, 6)


def test_a_stopped_server_closes_its_port(server):
    port = server.port
    server.stop(TIMEOUT_SECONDS)

    await_condition(lambda: bind_first_free_port((port,)).close() is None, "the port is free")


def test_foreign_keys_and_connections_are_counted_once(server, outsider, monkeypatch):
    """Those of nodes are not, and of strangers each once."""
    monkeypatch.setattr("sentinel.cluster.server.FOREIGN_CHECK_SECONDS", 0.0)
    join(server, outsider)
    checked_at = server._foreign_checked_at
    await_condition(lambda: server._foreign_checked_at > checked_at, "a check")
    assert refusal_counts(server.counters) == {}

    strangers = [socket.create_connection(("127.0.0.1", server.port)) for _ in range(3)]
    outsider.write({f"junk/{number}": b"junk" for number in range(20)})
    await_refusal(server, "foreign_connection", 3.0)
    await_refusal(server, "foreign_key", 20.0)
    checked_at = server._foreign_checked_at
    await_condition(lambda: server._foreign_checked_at > checked_at, "another check")
    assert refusal_counts(server.counters) == {"foreign_connection": 3.0, "foreign_key": 20.0}
    for stranger in strangers:
        stranger.close()


@pytest.mark.fault("X18")
def test_a_store_that_foreign_data_fill_is_closed_and_opened_again(monkeypatch):
    """At the same port; nodes connect again, and what was not acknowledged is sent again."""
    monkeypatch.setattr(module, "FLOOD_SECONDS", TIMEOUT_SECONDS)
    ports = free_ports()
    with running_server(ports, in_own_process=True) as server, running_client(ports[0]) as client:
        accept_client(server, client, last_row=5)
        assert (server.flood, server.store_count) == ("", 1)
        flood = connect_outsider(server.port)
        with suppress(MessageStoreError):
            flood.write(
                {f"junk/{number}": b"junk" for number in range(module.MAX_FOREIGN_KEYS + 1)}
            )
        await_condition(lambda: server.store_count == 2, "the store is opened again")
        assert "1,001 keys of no agent" in server.flood
        await_condition(lambda: client.is_head_flooded, "the client is informed")
        accept_client(server, client, last_row=5)
        assert not client.is_head_flooded

        with suppress(MessageStoreError):
            flood = connect_outsider(server.port)
            for number in range(40):
                flood.write({f"large/{number}": bytes(7 << 20)})
                flood.count_keys()
        await_condition(lambda: server.store_count == 3, "the store is opened again")
        assert "MiB" in server.flood
        accept_client(server, client, last_row=6)
        assert client.last_ack.last_row == 6
        assert refusal_counts(server.counters)["flood"] == 2


def test_a_store_whose_process_is_killed_is_opened_again():
    ports = free_ports()
    stores = []

    def host(listener):
        stores.append(MessageStore.host(listener))
        return stores[-1]

    server = module.ClusterServer(ports, AUTHENTICATOR, module.Counters(), open_store=host)
    server.start()
    try:
        await_condition(lambda: server.store_count == 1, "the store")
        os.kill(stores[0]._process.pid, signal.SIGKILL)
        await_condition(lambda: server.store_count == 2 and server.port, "another store")
        assert "process of the message store ended" in server.flood
    finally:
        server.stop(TIMEOUT_SECONDS)
