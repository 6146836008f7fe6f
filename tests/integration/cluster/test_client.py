"""A client finds its head and exchanges messages, or reports an error and retries."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from functools import partial

import pytest
from support.message_stores import (
    AUTHENTICATOR,
    TIMEOUT_SECONDS,
    LocalStore,
    accept_client,
    await_condition,
    connect_outsider,
    free_ports,
    hosted_store,
    refusal_counts,
    running_client,
    running_server,
)

from sentinel.cluster import client as module
from sentinel.cluster import message_store
from sentinel.cluster.authentication import MessageAuthenticator
from sentinel.cluster.client import ClusterClient
from sentinel.cluster.endpoints import HeadEndpoint
from sentinel.cluster.protocol import ACK_STRUCT, HEAD_INFO_KEY, SLOT_COUNTER_KEY, slot_keys
from sentinel.model.counters import Counters

OTHER_AUTHENTICATOR = MessageAuthenticator.for_job("other", "job")


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(module, "INITIAL_BACKOFF_SECONDS", 0.05)
    monkeypatch.setattr(module, "MAX_BACKOFF_SECONDS", 0.2)
    monkeypatch.setattr(module, "EXCHANGE_INTERVAL_SECONDS", 0.02)


def exchange(head, client, number, body=b"message"):
    """Send a message, receive it, and acknowledge it."""
    client.send(client.last_ack.session, body)
    ((slot, received),) = await_condition(head.drain_messages, "a message")
    assert received == body
    head.acknowledge(slot, number, 10 * number)
    await_condition(lambda: client.last_ack.message_number == number, "the ack")
    assert client.last_ack.last_row == 10 * number
    return slot


def test_a_client_and_its_head_exchange_messages():
    with running_server() as head, running_client(head.port, run="r", spool_id="s") as client:
        hello = accept_client(head, client, last_row=4)

        assert {**hello.node_info, "clock": ""} == {
            "host": "b",
            "run": "r",
            "spool_id": "s",
            "clock": "",
        }
        assert float(hello.node_info["clock"]) > 0.0
        assert (client.last_ack.message_number, client.last_ack.last_row) == (0, 4)
        assert client.head_address == f"127.0.0.1:{head.port}"
        assert client.error == ""
        for number in (1, 2, 3):
            exchange(head, client, number, bytes([number]) * 1000)
        assert refusal_counts(head.counters) == refusal_counts(client._counters) == {}


@pytest.mark.fault("T7")
def test_a_client_may_start_before_its_head():
    ports = free_ports()
    with running_client(ports[0]) as client:
        await_condition(lambda: "No answer" in client.error, "the error")
        with running_server(ports) as head:
            accept_client(head, client)


def test_a_restarted_head_starts_a_new_session():
    ports = free_ports()
    with running_client(ports[0]) as client:
        with running_server(ports) as head:
            accept_client(head, client)
            exchange(head, client, 1)
            session = client.last_ack.session
        await_condition(lambda: not client.is_connected, "the client is disconnected")
        client.send(session, b"of the last session")
        with running_server(ports) as head:
            accept_client(head, client, last_row=10)
            assert client.last_ack.session == session + 1
            assert (client.last_ack.message_number, client.last_ack.last_row) == (0, 10)
            exchange(head, client, 1, b"new")


def test_a_message_of_another_session_is_not_sent():
    with running_server() as head, running_client(head.port) as client:
        accept_client(head, client)
        client.send(client.last_ack.session - 1, b"old")
        await_condition(lambda: client._outgoing is None, "the message is discarded")

        exchange(head, client, 1, b"new")


def test_another_token_is_an_error_of_the_client_and_counted_by_the_head():
    with running_server() as head, running_client(head.port, OTHER_AUTHENTICATOR) as client:
        await_condition(lambda: "[cluster] token" in client.error, "the error")
        await_condition(
            lambda: refusal_counts(head.counters).get("token"), "the head counts the refusal"
        )
        assert refusal_counts(client._counters)["token"] >= 1
        assert head.drain_hellos() == []
        assert not client.is_connected


def test_the_head_of_another_job_is_skipped():
    first_port, *_ = ports = free_ports(3)
    with (
        running_server((first_port,), OTHER_AUTHENTICATOR) as other,
        running_server(ports) as head,
        running_client(ports) as client,
    ):
        assert head.port != other.port
        accept_client(head, client)
        assert client.head_address == f"127.0.0.1:{head.port}"


def test_a_store_without_a_head_is_skipped():
    """As the store of a trainer; nothing is written to it."""
    with (
        hosted_store() as (store, port),
        running_server() as head,
        running_client((port, head.port)) as client,
    ):
        accept_client(head, client)
        assert not store.has(SLOT_COUNTER_KEY)


@pytest.mark.parametrize(
    "head_info",
    [
        b"",
        b"garbage",
        AUTHENTICATOR.sign(HEAD_INFO_KEY, b"[]"),
        AUTHENTICATOR.sign(HEAD_INFO_KEY, b"{"),
    ],
)
def test_an_invalid_head_info_is_an_error_and_skipped(head_info):
    with hosted_store() as (store, port), running_server() as head:
        store.write({HEAD_INFO_KEY: head_info})
        with running_client(port) as client:
            await_condition(
                lambda: client.error not in ("", "the head has not been searched for yet"),
                "an error",
            )
            assert not client.is_connected
        with running_client((port, head.port)) as client:
            accept_client(head, client)


def test_a_client_follows_one_redirect_only():
    with (
        running_server() as head,
        running_server() as redirecting,
        running_client(redirecting.port) as client,
    ):
        redirecting.redirect_to = f"127.0.0.1:{head.port}"
        head.redirect_to = f"127.0.0.1:{redirecting.port}"
        # Two servers that redirect to each other: the client stays at the second.
        accept_client(head, client)
        assert client.head_address == f"127.0.0.1:{head.port}"


def test_an_unknown_address_of_the_head_is_an_error_with_a_remedy():
    client = ClusterClient(lambda: HeadEndpoint("", (1,)), AUTHENTICATOR, {}, Counters())
    client.start()
    await_condition(lambda: "set [cluster] head" in client.error, "the error")
    client.stop(TIMEOUT_SECONDS)


@pytest.mark.fault("T7")
def test_a_connection_that_never_answers_is_shut_down_and_retried(monkeypatch):
    """The client of a TCPStore would wait for ever."""
    monkeypatch.setattr(message_store, "CALL_TIMEOUT_SECONDS", 0.5)
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as silent,
        running_client(silent.getsockname()[1], in_own_process=True) as client,
    ):
        silent.settimeout(TIMEOUT_SECONDS)
        # A plain connection, and then that of torch.
        for _ in range(4):
            connection, _ = silent.accept()
            with closing(connection):
                await_condition(partial(is_closed, connection), "it is closed")
        assert not client.is_connected


def is_closed(connection):
    """Whether the client has closed the connection."""
    connection.setblocking(False)
    try:
        while connection.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


@pytest.mark.fault("T7")
def test_a_client_blocked_in_a_call_can_be_stopped():
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        with running_client(silent.getsockname()[1], in_own_process=True) as client:
            silent.settimeout(TIMEOUT_SECONDS)
            probe, _ = silent.accept()
            connection, _ = silent.accept()
        probe.close()
        connection.close()
        assert not client._thread.is_alive()


@pytest.mark.parametrize("how", ["emptied", "deleted", "overwritten"])
def test_a_message_deleted_by_an_outsider_times_out(monkeypatch, how):
    monkeypatch.setattr(module, "ACK_TIMEOUT_SECONDS", 0.5)
    with running_server() as head, running_client(head.port) as client:
        hello = accept_client(head, client)
        mailbox = slot_keys(hello.slot).mailbox
        session = client.last_ack.session
        # The head receives it but never acknowledges it.
        client.send(session, b"lost")
        await_condition(head.drain_messages, "a message")
        outsider = connect_outsider(head.port)
        if how == "deleted":
            outsider.remove([mailbox])
        else:
            outsider.write({mailbox: b"" if how == "emptied" else b"garbage"})

        accept_client(head, client)

        assert client.last_ack.session > session
        exchange(head, client, 1)


@pytest.mark.parametrize(
    "ack", [b"garbage" * 5, OTHER_AUTHENTICATOR.sign("x", ACK_STRUCT.pack(1, 1, 0))]
)
def test_an_invalid_ack_is_counted_and_starts_a_new_session(ack):
    with running_server() as head, running_client(head.port) as client:
        hello = accept_client(head, client, last_row=3)
        session = client.last_ack.session
        connect_outsider(head.port).write({slot_keys(hello.slot).ack: ack})

        accept_client(head, client, last_row=3)

        assert client.last_ack.session > session
        assert client.last_ack.last_row == 3
        assert sum(refusal_counts(client._counters).values()) == 1


def test_a_replayed_ack_is_ignored():
    with running_server() as head, running_client(head.port) as client:
        hello = accept_client(head, client)
        exchange(head, client, 1)
        ack = slot_keys(hello.slot).ack
        outsider = connect_outsider(head.port)
        (old,) = outsider.read([ack])
        exchange(head, client, 2)
        outsider.write({ack: old})
        outsider.read([ack])

        exchange(head, client, 3)


def test_the_last_ack_of_a_stopping_head_is_read():
    with running_server() as head, running_client(head.port) as client:
        hello = accept_client(head, client)
        client.send(client.last_ack.session, b"last")
        await_condition(head.drain_messages, "a message")
        head.acknowledge(hello.slot, 1, 10)
        head.stop(TIMEOUT_SECONDS)

        await_condition(lambda: client.last_ack.message_number == 1, "the ack")
        await_condition(lambda: not client.is_connected, "the client is disconnected")


def test_a_deleted_ack_starts_a_new_session():
    with running_server() as head, running_client(head.port) as client:
        hello = accept_client(head, client)
        session = client.last_ack.session
        connect_outsider(head.port).remove([slot_keys(hello.slot).ack])

        accept_client(head, client)
        assert client.last_ack.session > session


def test_many_clients_exchange_messages_at_once():
    count = 6
    with running_server() as head:
        clients = [
            ClusterClient(
                lambda: HeadEndpoint("127.0.0.1", (head.port,)),
                AUTHENTICATOR,
                {"host": str(n)},
                Counters(),
                LocalStore(),
            )
            for n in range(count)
        ]
        for client in clients:
            client.start()
        hosts, received = {}, {}

        def all_connected():
            # On a slow machine a client may have to send its hello again.
            for hello in head.drain_hellos():
                hosts[hello.slot] = hello.node_info["host"]
                head.acknowledge(hello.slot, 0, hello.slot)
            return all(client.is_connected for client in clients)

        def all_received():
            all_connected()
            for number, client in enumerate(clients):
                if str(number) not in received and client.is_connected and client.last_ack:
                    client.send(client.last_ack.session, json.dumps(number).encode())
            received.update({hosts[slot]: json.loads(body) for slot, body in head.drain_messages()})
            return len(received) == count

        await_condition(all_connected, "all clients are connected")
        await_condition(all_received, "all messages")
        assert received == {str(n): n for n in range(count)}
        for client in clients:
            client.stop(TIMEOUT_SECONDS)
