"""Hub: whoever shares the token is heard, and nobody else does more than be counted."""

from __future__ import annotations

import json

import pytest
from support.message_stores import (
    PATIENCE,
    SEAL,
    awaited,
    birth,
    hub,
    link,
    ports,
    refusals,
    stranger,
    welcomed,
)

from sentinel.cluster import server as module
from sentinel.cluster.authentication import PROTOCOL_VERSION, MessageAuthenticator
from sentinel.cluster.client import ACK_STRUCT
from sentinel.cluster.endpoints import HEAD_INFO_KEY, SLOT_COUNTER_KEY, slot_keys
from sentinel.cluster.message_store import MessageStoreError, bind_first_free_port


@pytest.fixture
def hosted():
    with hub() as made:
        yield made


@pytest.fixture
def other(hosted):
    """Somebody who found the store."""
    return stranger(hosted.master_port)


def hello(board, seal=SEAL, card=None, said=None):
    """A slot in which somebody said hello, with that card or those bytes."""
    slot = board.count(SLOT_COUNTER_KEY)
    place, box, ack = slot_keys(slot)
    body = json.dumps({"host": "b"} if card is None else card).encode()
    message = seal.close(f"{place}/{birth(board)}", body) if said is None else said
    board.write({box: b"", ack: b"", place: message})
    return slot


def answered(board, slot):
    """What was answered last in that slot, once there is anything."""
    ack = slot_keys(slot)[2]
    message = awaited(lambda: board.read([ack])[0], "an answer")
    return ACK_STRUCT.unpack(SEAL.verify(f"{ack}/{birth(board)}", message))


def leave(board, slot, body, seal=SEAL):
    box = slot_keys(slot)[1]
    board.write({box: seal.close(f"{box}/{birth(board)}", body)})


def emptied(board, slot):
    return not board.read([slot_keys(slot)[1]])[0]


def counted(hosted, reason, count=1.0):
    awaited(lambda: refusals(hosted.counters).get(reason, 0.0) >= count, f"{reason} is counted")


def well(hosted, board):
    """Whether a node that comes now is heard and answered."""
    slot = hello(board, card={"host": "well"})
    found = awaited(lambda: [h for h in hosted.drain_hellos() if h.slot == slot], "a hello")
    hosted.answer(slot, 0, 3)
    assert answered(board, slot) == (0, 3, 0)
    leave(board, slot, b"parcel")
    taken = awaited(
        lambda: [each for each in hosted.drain_messages() if each[0] == slot], "a parcel"
    )
    return found[0].node_info == {"host": "well"} and taken == [(slot, b"parcel")]


def let_in(hosted, other):
    """The slot of a node whose hello was answered."""
    slot = hello(other)
    awaited(hosted.drain_hellos, "a hello")
    hosted.answer(slot, 0, 0)
    answered(other, slot)
    return slot


def test_a_node_is_heard_answered_and_its_parcels_are_taken_one_by_one(hosted, other):
    slot = hello(other, card={"host": "b", "number": 7})
    (found,) = awaited(hosted.drain_hellos, "a hello")
    assert (found.slot, found.node_info) == (slot, {"host": "b", "number": "7"})
    hosted.answer(slot, 0, 41, deputy=True)
    assert answered(other, slot) == (0, 41, 1)

    leave(other, slot, b"first")
    assert awaited(hosted.drain_messages, "a parcel") == [(slot, b"first")]
    assert not emptied(other, slot), "a box stays full until its parcel is answered"
    hosted.answer(slot, 1, 42)
    awaited(lambda: answered(other, slot) == (1, 42, 0), "the answer")
    assert emptied(other, slot)
    leave(other, slot, b"second")
    assert awaited(hosted.drain_messages, "a parcel") == [(slot, b"second")]


def test_a_node_that_is_dropped_finds_nothing_any_more(hosted, other):
    slot = let_in(hosted, other)

    hosted.drop_slot(slot)

    awaited(lambda: not any(map(other.has, slot_keys(slot))), "nothing is there")
    assert well(hosted, other)


@pytest.mark.parametrize(
    ("seal", "said", "reason"),
    [
        (MessageAuthenticator.for_job("wrong", "job"), None, "token"),
        (SEAL, bytes([PROTOCOL_VERSION + 1]) + bytes(100), "version"),
        (SEAL, b"", "damaged"),
        (SEAL, b"\xff" * 5_000_000, "version"),
        (SEAL, SEAL.sign("another place", b"{}"), "token"),
    ],
    ids=["token", "version", "empty", "huge", "replayed"],
)
def test_a_hello_that_is_not_ours_is_counted_and_not_heard(hosted, other, seal, said, reason):
    hello(other, seal, said=said)

    counted(hosted, reason)
    assert hosted.drain_hellos() == []
    assert well(hosted, other)


@pytest.mark.parametrize("card", [[], 7, "text", None, [["a", "b"]]])
def test_a_card_that_is_none_is_counted_though_its_seal_is_right(hosted, other, card):
    place = slot_keys(other.count(SLOT_COUNTER_KEY, 0) + 1)[0]
    body = json.dumps(card).encode()
    hello(other, said=SEAL.sign(f"{place}/{birth(other)}", body))

    counted(hosted, "damaged")
    assert well(hosted, other)


def test_garbage_in_a_box_is_counted_and_the_node_may_leave_its_parcel_again(hosted, other):
    slot = let_in(hosted, other)

    box = slot_keys(slot)[1]
    other.write({box: b"garbage" * 9})
    counted(hosted, "version")
    leave(other, slot, b"parcel", MessageAuthenticator.for_job("wrong", "job"))
    counted(hosted, "token")
    other.write({box: b"\xff" * (module.MAX_MESSAGE_BYTES + 1000)})
    counted(hosted, "too_large")
    leave(other, slot, b"parcel")
    assert awaited(hosted.drain_messages, "a parcel") == [(slot, b"parcel")]


def test_a_parcel_as_large_as_may_be_is_taken(hosted, other):
    slot = let_in(hosted, other)
    leave(other, slot, b"x" * module.MAX_MESSAGE_BYTES)

    ((_, data),) = awaited(hosted.drain_messages, "a parcel")
    assert len(data) == module.MAX_MESSAGE_BYTES


def test_boxes_stay_full_while_too_much_waits_to_be_taken_up(hosted, other, monkeypatch):
    monkeypatch.setattr(module, "MAX_RECEIVED_BYTES", 10)
    slots = [hello(other), hello(other)]
    awaited(lambda: [hosted.answer(each.slot, 0, 0) for each in hosted.drain_hellos()], "a hello")
    for slot in slots:
        awaited(
            lambda: [hosted.answer(h.slot, 0, 0) for h in hosted.drain_hellos()] or True, "hellos"
        )
        answered(other, slot)
    leave(other, slots[0], b"x" * 20)
    awaited(lambda: hosted._arrived, "a parcel")
    leave(other, slots[1], b"second")
    other.read([HEAD_INFO_KEY])
    turns(hosted, other)
    assert len(hosted._arrived) == 1

    assert awaited(hosted.drain_messages, "the first") == [(slots[0], b"x" * 20)]
    assert awaited(hosted.drain_messages, "the second") == [(slots[1], b"second")]


def turns(hosted, board):
    """Wait until the hub has looked at everything once more."""
    slot = hello(board, MessageAuthenticator.for_job("wrong", "job"))
    before = refusals(hosted.counters).get("token", 0.0)
    awaited(lambda: refusals(hosted.counters).get("token", 0.0) > before or slot < 0, "a turn")
    hosted.drop_slot(slot)
    awaited(lambda: not board.has(slot_keys(slot)[0]), "two turns")


def test_places_that_nobody_fills_keep_no_node_out(hosted, other, monkeypatch):
    monkeypatch.setattr(module, "MAX_EMPTY_POLLS", 2)
    other.count(SLOT_COUNTER_KEY, 1000)

    counted(hosted, "too_many", 1000.0 - 2 * module.MAX_PENDING_JOINS)
    assert well(hosted, other)


@pytest.mark.parametrize("count", [b"0", b"-5", b"garbage", b"9" * 15, b"9" * 18, b""])
def test_whoever_writes_to_the_count_of_nodes_keeps_nobody_out(hosted, other, count):
    assert well(hosted, other)

    other.write({SLOT_COUNTER_KEY: count})

    counted(hosted, "damaged")
    assert well(hosted, other)
    assert well(hosted, other)


def test_the_count_of_nodes_may_be_taken_away(hosted, other):
    assert well(hosted, other)
    before = birth(other)

    other.remove([SLOT_COUNTER_KEY])

    counted(hosted, "damaged")
    assert well(hosted, other)
    assert birth(other) == before


def test_a_box_that_was_taken_away_is_done_with_and_the_others_go_on(hosted, other):
    slots = [hello(other), hello(other)]
    found = []
    awaited(lambda: found.extend(hosted.drain_hellos()) or len(found) == 2, "two hellos")
    for slot in slots:
        hosted.answer(slot, 0, 0)
    for slot in slots:
        answered(other, slot)
    before = birth(other)

    other.remove([slot_keys(slots[0])[1]])
    counted(hosted, "damaged")
    leave(other, slots[1], b"parcel")

    assert awaited(hosted.drain_messages, "a parcel") == [(slots[1], b"parcel")]
    assert birth(other) == before


def test_beyond_as_many_nodes_as_may_be_one_more_is_counted(hosted, other, monkeypatch):
    monkeypatch.setattr(module, "MAX_SLOTS", 1)
    let_in(hosted, other)

    hello(other)

    counted(hosted, "too_many")
    assert hosted.drain_hellos() == []


def test_the_card_says_where_else_the_head_is(hosted, other):
    hosted.redirect_to = "gpu-b:7000"

    def card():
        return (
            json.loads(SEAL.verify(HEAD_INFO_KEY, other.read([HEAD_INFO_KEY])[0]))["at"]
            == "gpu-b:7000"
        )

    awaited(card, "the card says so")


def test_who_cannot_have_its_port_says_so_and_has_it_later(monkeypatch):
    monkeypatch.setattr(module, "RETRY_DELAY_SECONDS", 0.1)
    place = bind_first_free_port((0,))
    port = place.getsockname()[1]
    made = module.ClusterServer((port,), SEAL, module.Counters())
    made.start()
    try:
        awaited(lambda: "is free" in made.error, "it says so")
        assert made.port == 0
        place.close()
        awaited(lambda: made.port == port, "it listens")
        assert made.error == ""
    finally:
        made.stop(PATIENCE)


@pytest.mark.quiet
def test_what_is_still_to_be_said_when_a_store_fails_reaches_nobody_else(monkeypatch):
    """The slots of its next life are others; an answer with another's rows would lose some."""
    monkeypatch.setattr(module, "RETRY_DELAY_SECONDS", 0.1)
    at = ports()
    with hub(at) as hosted, link(at[0]) as one:
        first = welcomed(hosted, one, row=5)
        fail = iter([True])
        turn = hosted._poll_store

        def failing(board):
            if next(fail, False):
                raise MessageStoreError("The store failed.")
            turn(board)

        monkeypatch.setattr(hosted, "_poll_store", failing)
        awaited(lambda: not one.is_connected, "it breaks")
        hosted.acknowledge(first.slot, 7, 999)
        again = welcomed(hosted, one, row=6)

        assert again.slot > first.slot
        assert (one.last_ack.message_number, one.last_ack.last_row) == (0, 6)


def test_a_hub_that_is_stopped_leaves_the_port(hosted):
    port = hosted.master_port
    hosted.stop(PATIENCE)

    awaited(lambda: bind_first_free_port((port,)).close() is None, "the port is free")
