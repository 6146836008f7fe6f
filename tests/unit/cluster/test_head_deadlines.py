"""When the head considers a node lost, gives it up, and is finished."""

from __future__ import annotations

import pytest
from support.heads import HeadHarness, last_heartbeat, summarize

from sentinel.cluster.head import NODE_RETURN_SECONDS, PROMPT_SECONDS
from sentinel.cluster.membership import (
    ABANDON_AFTER_SECONDS,
    LOST_AFTER_SECONDS,
    RECONNECT_GRACE_SECONDS,
)
from sentinel.model.record import Event


@pytest.fixture
def harness(tmp_path):
    return HeadHarness(tmp_path / "sentinel.db")


def test_a_silent_node_is_lost_until_its_next_heartbeat(harness):
    node = harness.start_nodes()
    assert last_heartbeat(harness.advance(LOST_AFTER_SECONDS - 1)).values["nodes_lost"] == 0.0
    lost = last_heartbeat(harness.advance(2))
    assert (lost.values["nodes_lost"], lost.attributes["lost_nodes"]) == (1.0, "b")
    assert lost.attributes["lost_ranks"] == "2,3"
    assert [each["state"] for each in harness.head.node_status()] == ["up", "lost"]

    node.send(node.heartbeat())
    assert last_heartbeat(harness.advance(1)).values["nodes_lost"] == 0.0


def test_a_node_whose_ranks_have_ended_is_not_lost(harness):
    node = harness.start_nodes()
    node.send(*node.records(Event.STOP, outcome="finished"), node.heartbeat("finished"))

    heartbeat = last_heartbeat(harness.advance(LOST_AFTER_SECONDS + 5))

    assert heartbeat.values["nodes_lost"] == 0.0
    assert [each["state"] for each in harness.head.node_status()] == ["up", "ended"]


def test_no_node_is_lost_after_a_head_was_suspended(harness):
    node = harness.start_nodes()
    harness.merge(seconds=600.0)
    heartbeat = last_heartbeat(harness.merge(harness.own_node.heartbeat()))
    assert heartbeat.values["nodes_lost"] == 0.0

    node.send(node.heartbeat())
    assert last_heartbeat(harness.advance(LOST_AFTER_SECONDS - 2)).values["nodes_lost"] == 0.0


def test_no_node_is_lost_while_the_store_is_flooded(harness):
    """Its ranks are unreachable, so that steps wait for them; time to return follows."""
    harness.start_nodes()
    harness.server.flood, harness.server.store_count = "Full.", 2
    flooded = last_heartbeat(harness.advance(60))
    assert (flooded.values["nodes_lost"], flooded.values["store_flooded"]) == (0.0, 1.0)
    assert flooded.attributes["store_flood"] == "Full."
    assert flooded.attributes["unreachable_ranks"] == "2,3"

    harness.server.flood = ""
    over = last_heartbeat(harness.advance(LOST_AFTER_SECONDS - 2))
    assert (over.values["nodes_lost"], over.values["store_flooded"]) == (0.0, 0.0)
    assert "store_flood" not in over.attributes
    assert last_heartbeat(harness.advance(4)).values["nodes_lost"] == 1.0


def test_what_was_not_acknowledged_before_a_store_was_closed_is_evaluated_once(harness):
    node = harness.start_nodes()
    sent = node.records(step=1)
    node.send(*sent)
    harness.server.store_count = 2
    # The message arrived in a session that is over.
    assert summarize(harness.merge()) == []

    node.send_hello()
    harness.merge()
    assert harness.server.acks[-1][2] == node.last_row - 1
    node.send(*sent, after_row=node.last_row - 1)
    assert summarize(harness.merge()) == [(2, 0, 1), (3, 0, 1)]


def test_the_first_message_of_the_first_node_makes_it_the_deputy(harness):
    """Before any heartbeat, and again in the next store."""
    harness.merge(*harness.own_node.records(Event.START))
    node = harness.add_node()
    node.send(*node.records(Event.START))
    harness.merge()
    assert harness.server.acks[-1][3]

    harness.server.store_count = 2
    harness.merge()
    node.send_hello()
    harness.merge()
    assert harness.server.acks[-1][0] == node.slot
    assert harness.server.acks[-1][3]


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_no_node_is_lost_after_a_step_of_the_clock(harness, seconds):
    harness.start_nodes()
    harness.merge(seconds=seconds)

    assert last_heartbeat(harness.merge(harness.own_node.heartbeat())).values["nodes_lost"] == 0.0


def test_a_node_that_does_not_reconnect_to_a_restarted_head_is_lost(harness):
    harness.start_nodes()
    harness.connection.close()
    harness.start_agent()

    records = harness.advance(RECONNECT_GRACE_SECONDS + LOST_AFTER_SECONDS - 2)
    assert last_heartbeat(records).values["nodes_lost"] == 0.0
    assert last_heartbeat(harness.advance(4)).attributes["lost_nodes"] == "b"


def test_the_connected_node_with_the_lowest_rank_is_the_deputy(harness):
    harness.world_size = 6
    second, first = harness.start_nodes(), harness.add_node("c", (4, 5))
    first.send(*first.records(Event.START))
    harness.merge(harness.own_node.heartbeat())
    harness.merge(harness.own_node.heartbeat())

    harness.server.acks.clear()
    for node in (first, second):
        node.send(node.heartbeat())
    harness.merge()
    assert {slot: deputy for slot, _, _, deputy in harness.server.acks} == {
        first.slot: False,
        second.slot: True,
    }
    harness.advance(LOST_AFTER_SECONDS + 2, others=[first])
    assert harness.server.acks[-1][0] == first.slot
    assert harness.server.acks[-1][3]


def test_a_run_is_finished_once_all_ranks_of_all_nodes_have_ended(harness):
    node = harness.start_nodes()
    harness.merge(*harness.own_node.records(Event.STOP, outcome="finished"))
    assert not harness.head.finished

    node.send(*node.records(Event.STOP, outcome="finished"))
    harness.merge()
    assert harness.head.finished


def test_a_run_is_not_finished_while_local_ranks_run(harness):
    node = harness.start_nodes()
    node.send(*node.records(Event.STOP, outcome="finished"))
    harness.advance(2 * ABANDON_AFTER_SECONDS)
    assert not harness.head.finished

    harness.merge(*harness.own_node.records(Event.STOP, outcome="finished"))
    assert harness.head.finished


def test_nodes_that_never_join_are_given_up(harness):
    harness.merge(*harness.own_node.records(Event.START))
    harness.merge(*harness.own_node.records(Event.STOP, outcome="finished"))
    assert not harness.head.finished

    harness.advance(ABANDON_AFTER_SECONDS + 1)
    assert harness.head.finished


def test_ranks_of_a_lost_node_get_a_stop_once_all_others_have_ended(harness):
    harness.start_nodes()
    harness.merge(*harness.own_node.records(Event.STOP, outcome="finished"))

    records = harness.advance(ABANDON_AFTER_SECONDS + 2)

    ends = [r for r in records if r.event is Event.STOP]
    assert [(end.rank, end.attributes["outcome"], end.attributes["lost_node"]) for end in ends] == [
        (2, "died", "b"),
        (3, "died", "b"),
    ]
    assert harness.head.finished
    assert not [r for r in harness.advance(5) if r.event is Event.STOP]


def test_ranks_of_a_lost_node_get_no_stop_while_local_ranks_run(harness):
    harness.start_nodes()

    records = harness.advance(3 * ABANDON_AFTER_SECONDS)

    assert not [record for record in records if record.event is Event.STOP]


def test_abandoned_nodes_survive_a_restart_of_the_head(harness):
    harness.start_nodes()
    harness.merge(*harness.own_node.records(Event.STOP, outcome="finished"))
    harness.advance(ABANDON_AFTER_SECONDS + 2)
    harness.connection.close()
    harness.start_agent()

    assert last_heartbeat(harness.advance(2)).attributes["lost_nodes"] == ""
    assert (
        last_heartbeat(
            harness.advance(RECONNECT_GRACE_SECONDS + LOST_AFTER_SECONDS + 2)
        ).attributes["lost_nodes"]
        == "b"
    )


def test_the_loss_of_a_node_is_sent_at_once_or_after_time_to_return(harness):
    """What cannot be sent at once shows that the link of the head itself may be cut."""
    node = harness.start_nodes()
    harness.advance(LOST_AFTER_SECONDS + 1)
    opened_time = harness.now
    assert harness.head.has_lost_nodes
    assert harness.head.confirms_loss({"b"}, opened_time)

    harness.now += PROMPT_SECONDS
    assert not harness.head.confirms_loss({"b"}, opened_time)
    harness.now += NODE_RETURN_SECONDS
    assert harness.head.confirms_loss({"b"}, opened_time)

    harness.advance(1, others=[node])
    assert harness.head.is_reached({"b"})
    assert not harness.head.has_lost_nodes
    assert not harness.head.confirms_loss({"b"}, opened_time)
    assert not harness.head.is_reached({"b", "c"})


def test_ranks_that_have_sent_nothing_are_in_the_heartbeat(harness):
    harness.merge(*harness.own_node.records(Event.START))
    before = last_heartbeat(harness.merge(harness.own_node.heartbeat()))
    harness.start_nodes()
    after = last_heartbeat(harness.merge(harness.own_node.heartbeat()))

    assert before.attributes["unreported_ranks"] == "2-3"
    assert "unreported_ranks" not in after.attributes


def test_a_lost_node_beside_another_on_its_host_is_not_back(harness):
    harness.merge(*harness.own_node.records(Event.START))
    node = harness.add_node(host="a")
    node.send(*node.records(Event.START), node.heartbeat())
    harness.advance(LOST_AFTER_SECONDS + 1)

    assert harness.head.has_lost_nodes
    assert not harness.head.is_reached({"a"})
    assert harness.head.confirms_loss({"a"}, harness.now)
