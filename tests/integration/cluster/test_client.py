"""Link: it finds the head and is answered, or tells what is in the way, and comes again."""

from __future__ import annotations

import json
import socket
from contextlib import closing
from functools import partial

import pytest
from support.message_stores import (
    PATIENCE,
    SEAL,
    awaited,
    hosted,
    hub,
    link,
    ports,
    refusals,
    stranger,
    welcomed,
)

from sentinel.cluster import client as module
from sentinel.cluster.authentication import MessageAuthenticator
from sentinel.cluster.client import ACK_STRUCT, ClusterClient
from sentinel.cluster.endpoints import HEAD_INFO_KEY, SLOT_COUNTER_KEY, HeadEndpoint, slot_keys
from sentinel.model.counters import Counters

OTHER = MessageAuthenticator.for_job("other", "job")


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Nobody waits for long in a test."""
    monkeypatch.setattr(module, "INITIAL_BACKOFF_SECONDS", 0.05)
    monkeypatch.setattr(module, "MAX_BACKOFF_SECONDS", 0.2)
    monkeypatch.setattr(module, "EXCHANGE_INTERVAL_SECONDS", 0.02)


def exchanged(head, node, number, data=b"parcel"):
    """A parcel that was left, taken and answered."""
    node.send(node.answer.session, data)
    ((slot, found),) = awaited(head.drain_messages, "a parcel")
    assert found == data
    head.answer(slot, number, 10 * number)
    awaited(lambda: node.answer.message_number == number, "the answer")
    assert node.answer.row == 10 * number
    return slot


def test_a_node_and_its_head_correspond():
    with hub() as head, link(head.port, run="r", spool="s") as node:
        hello = welcomed(head, node, row=4)

        assert {**hello.node_info, "clock": ""} == {
            "host": "b",
            "run": "r",
            "spool": "s",
            "clock": "",
        }
        assert float(hello.node_info["clock"]) > 0.0
        assert (node.last_ack.message_number, node.last_ack.last_row) == (0, 4)
        assert node.head_address == f"127.0.0.1:{head.port}"
        assert node.error == ""
        for number in (1, 2, 3):
            exchanged(head, node, number, bytes([number]) * 1000)
        assert refusals(head.counters) == refusals(node._counters) == {}


def test_the_head_may_come_later_than_its_nodes():
    at = ports()
    with link(at[0]) as node:
        awaited(lambda: "Nobody answers" in node.error, "it says so")
        with hub(at) as head:
            welcomed(head, node)


def test_after_a_head_was_started_again_the_correspondence_begins_anew():
    at = ports()
    with link(at[0]) as node:
        with hub(at) as head:
            welcomed(head, node)
            exchanged(head, node, 1)
            session = node.last_ack.session
        awaited(lambda: not node.is_connected, "it is gone")
        node.send(session, b"of the last correspondence")
        with hub(at) as head:
            welcomed(head, node, row=10)
            assert node.last_ack.session == session + 1
            assert (node.last_ack.message_number, node.last_ack.last_row) == (0, 10)
            exchanged(head, node, 1, b"new")


def test_a_parcel_of_another_correspondence_is_not_left():
    with hub() as head, link(head.port) as node:
        welcomed(head, node)
        node.send(node.last_ack.session - 1, b"old")
        awaited(lambda: node._outgoing is None, "it was looked at")

        exchanged(head, node, 1, b"new")


def test_one_with_another_token_is_told_what_is_wrong_and_the_head_counts_it():
    with hub() as head, link(head.port, OTHER) as node:
        awaited(lambda: "[cluster] token" in node.error, "it says so")
        awaited(lambda: refusals(head.counters).get("token"), "the head counts it")
        assert refusals(node._counters)["token"] >= 1
        assert head.drain_hellos() == []
        assert not node.is_connected


def test_the_head_of_another_job_at_the_same_port_is_passed_by():
    one, *_ = at = ports(3)
    with hub((one,), OTHER) as other, hub(at) as head, link(at) as node:
        assert head.port != other.port
        welcomed(head, node)
        assert node.head_address == f"127.0.0.1:{head.port}"


def test_a_store_that_is_no_heads_is_passed_by():
    """That of a trainer, maybe: nothing is left in it."""
    with hosted() as (board, port), hub() as head, link((port, head.port)) as node:
        welcomed(head, node)
        assert not board.has(SLOT_COUNTER_KEY)


@pytest.mark.parametrize(
    "card", [b"", b"garbage", SEAL.sign(HEAD_INFO_KEY, b"[]"), SEAL.sign(HEAD_INFO_KEY, b"{")]
)
def test_a_card_that_is_none_is_told_and_passed_by(card):
    with hosted() as (board, port), hub() as head:
        board.write({HEAD_INFO_KEY: card})
        with link(port) as node:
            awaited(lambda: node.error not in ("", "it has not been looked for yet"), "trouble")
            assert not node.is_connected
        with link((port, head.port)) as node:
            welcomed(head, node)


def test_one_that_is_sent_on_goes_there_and_no_further():
    with hub() as head, hub() as sign, link(sign.port) as node:
        sign.redirect_to = f"127.0.0.1:{head.port}"
        head.redirect_to = f"127.0.0.1:{sign.port}"
        # Two that send it to each other hold it at the second.
        welcomed(head, node)
        assert node.head_address == f"127.0.0.1:{head.port}"


def test_without_any_word_of_where_the_head_is_the_remedy_is_told():
    node = ClusterClient(lambda: HeadEndpoint("", (1,)), SEAL, {}, Counters())
    node.start()
    awaited(lambda: "set [cluster] head" in node.error, "it says so")
    node.stop(PATIENCE)


def test_a_server_that_never_answers_is_cut_and_tried_again(monkeypatch):
    """A store's client would wait for ever. A person looks, the thread waits."""
    monkeypatch.setattr(module, "CALL_TIMEOUT_SECONDS", 0.5)
    with (
        closing(socket.create_server(("127.0.0.1", 0))) as silent,
        link(silent.getsockname()[1]) as node,
    ):
        silent.settimeout(PATIENCE)
        for _ in range(3):
            client, _ = silent.accept()
            with closing(client):
                awaited(partial(let_go, node, client), "it is let go")
        assert not node.is_connected


def let_go(node, client):
    """Whether the other side has hung up, while somebody looks after the link."""
    node.look()
    client.setblocking(False)
    try:
        while client.recv(4096):
            pass
    except BlockingIOError:
        return False
    except OSError:
        return True
    return True


def test_a_link_that_waits_for_an_answer_for_ever_can_be_stopped():
    with closing(socket.create_server(("127.0.0.1", 0))) as silent:
        with link(silent.getsockname()[1]) as node:
            silent.settimeout(PATIENCE)
            knock, _ = silent.accept()
            client, _ = silent.accept()
        knock.close()
        client.close()
        assert not node._thread.is_alive()


@pytest.mark.parametrize("how", ["emptied", "taken away", "overwritten"])
def test_a_parcel_that_somebody_takes_away_is_not_waited_for_for_ever(monkeypatch, how):
    monkeypatch.setattr(module, "ACK_TIMEOUT_SECONDS", 0.5)
    with hub() as head, link(head.port) as node:
        hello = welcomed(head, node)
        box = slot_keys(hello.slot)[1]
        session = node.last_ack.session
        # Nobody answers it, as if it had never been seen.
        node.send(session, b"lost")
        awaited(head.drain_messages, "a parcel")
        other = stranger(head.port)
        if how == "taken away":
            other.remove([box])
        else:
            other.write({box: b"" if how == "emptied" else b"garbage"})

        welcomed(head, node)

        assert node.last_ack.session > session
        exchanged(head, node, 1)


@pytest.mark.parametrize("said", [b"garbage" * 5, OTHER.sign("x", ACK_STRUCT.pack(1, 1, 0))])
def test_garbage_for_an_answer_is_counted_and_the_correspondence_begins_anew(said):
    with hub() as head, link(head.port) as node:
        hello = welcomed(head, node, row=3)
        session = node.last_ack.session
        stranger(head.port).write({slot_keys(hello.slot)[2]: said})

        welcomed(head, node, row=3)

        assert node.last_ack.session > session
        assert node.last_ack.last_row == 3
        assert sum(refusals(node._counters).values()) == 1


def test_an_old_answer_that_somebody_puts_back_is_not_believed():
    with hub() as head, link(head.port) as node:
        hello = welcomed(head, node)
        exchanged(head, node, 1)
        ack = slot_keys(hello.slot)[2]
        other = stranger(head.port)
        (old,) = other.read([ack])
        exchanged(head, node, 2)
        other.write({ack: old})
        other.read([ack])

        exchanged(head, node, 3)


def test_the_last_answer_of_a_head_that_leaves_at_once_is_read():
    with hub() as head, link(head.port) as node:
        hello = welcomed(head, node)
        node.send(node.last_ack.session, b"last words")
        awaited(head.drain_messages, "a parcel")
        head.acknowledge(hello.slot, 1, 10)
        head.stop(PATIENCE)

        awaited(lambda: node.last_ack.message_number == 1, "the answer")
        awaited(lambda: not node.is_connected, "it is gone")


def test_an_answer_that_is_taken_away_begins_the_correspondence_anew():
    with hub() as head, link(head.port) as node:
        hello = welcomed(head, node)
        session = node.last_ack.session
        stranger(head.port).remove([slot_keys(hello.slot)[2]])

        welcomed(head, node)
        assert node.last_ack.session > session


def test_many_nodes_correspond_at_one_time():
    count = 6
    with hub() as head:
        nodes = [
            ClusterClient(
                lambda: HeadEndpoint("127.0.0.1", (head.port,)), SEAL, {"host": str(n)}, Counters()
            )
            for n in range(count)
        ]
        for node in nodes:
            node.start()
        slots, found = {}, {}

        def greeted():
            # On a slow machine a node may have to say it again.
            for hello in head.drain_hellos():
                slots[hello.slot] = hello.node_info["host"]
                head.acknowledge(hello.slot, 0, hello.slot)
            return all(node.is_connected for node in nodes)

        def told():
            greeted()
            for number, node in enumerate(nodes):
                if str(number) not in found and node.is_connected and node.last_ack:
                    node.send(node.last_ack.session, json.dumps(number).encode())
            found.update({slots[slot]: json.loads(data) for slot, data in head.drain_messages()})
            return len(found) == count

        awaited(greeted, "all are linked")
        awaited(told, "all parcels")
        assert found == {str(n): n for n in range(count)}
        for node in nodes:
            node.stop(PATIENCE)
