"""Head: who is lost, who is only late, and when nothing more is to be heard."""

from __future__ import annotations

import pytest
from support.heads import House, last_tick

from sentinel.cluster.membership import (
    ABANDON_AFTER_SECONDS,
    LOST_AFTER_SECONDS,
    RECONNECT_GRACE_SECONDS,
)
from sentinel.model.record import Event


@pytest.fixture
def house(tmp_path):
    return House(tmp_path / "sentinel.db")


def test_a_node_that_falls_silent_is_lost_and_is_back_once_it_is_heard(house):
    node = house.running()
    assert last_tick(house.wait(LOST_AFTER_SECONDS - 1)).values["nodes_lost"] == 0.0
    lost = last_tick(house.wait(2))
    assert (lost.values["nodes_lost"], lost.attributes["lost_nodes"]) == (1.0, "b")
    assert lost.attributes["lost_ranks"] == "2,3"
    assert [each["state"] for each in house.head.state()] == ["up", "lost"]

    node.decode(node.tick())
    assert last_tick(house.wait(1)).values["nodes_lost"] == 0.0


def test_a_node_whose_ranks_have_ended_is_not_lost(house):
    node = house.running()
    node.decode(*node.says(Event.STOP, outcome="finished"), node.tick("finished"))

    tick = last_tick(house.wait(LOST_AFTER_SECONDS + 5))

    assert tick.values["nodes_lost"] == 0.0
    assert [each["state"] for each in house.head.state()] == ["up", "ended"]


def test_a_head_that_was_stopped_holds_nobody_for_lost(house):
    node = house.running()
    house.merge(seconds=600.0)
    tick = last_tick(house.merge(house.own_member.tick()))
    assert tick.values["nodes_lost"] == 0.0

    node.decode(node.tick())
    assert last_tick(house.wait(LOST_AFTER_SECONDS - 2)).values["nodes_lost"] == 0.0


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_clock_of_the_heads_that_steps_holds_nobody_for_lost(house, seconds):
    house.running()
    house.merge(seconds=seconds)

    assert last_tick(house.merge(house.own_member.tick())).values["nodes_lost"] == 0.0


def test_a_node_that_never_comes_back_to_a_head_that_was_killed_is_lost(house):
    house.running()
    house.connection.close()
    house.start_at_attempt()

    ticks = house.wait(RECONNECT_GRACE_SECONDS + LOST_AFTER_SECONDS - 2)
    assert last_tick(ticks).values["nodes_lost"] == 0.0
    assert last_tick(house.wait(4)).attributes["lost_nodes"] == "b"


def test_the_node_of_the_lowest_rank_that_is_heard_is_the_deputy(house):
    house.world = 6
    second, first = house.running(), house.node("c", (4, 5))
    first.decode(*first.says(Event.START))
    house.merge(house.own_member.tick())
    house.merge(house.own_member.tick())

    house.server.answers.clear()
    for node in (first, second):
        node.decode(node.tick())
    house.merge()
    assert {slot: deputy for slot, _, _, deputy in house.server.answers} == {
        first.slot: False,
        second.slot: True,
    }
    house.wait(LOST_AFTER_SECONDS + 2, others=[first])
    assert house.server.answers[-1][0] == first.slot
    assert house.server.answers[-1][3]


def test_a_run_is_over_once_all_ranks_of_all_nodes_have_ended(house):
    node = house.running()
    house.merge(*house.own_member.says(Event.STOP, outcome="finished"))
    assert not house.head.over

    node.decode(*node.says(Event.STOP, outcome="finished"))
    house.merge()
    assert house.head.over


def test_others_may_leave_first(house):
    node = house.running()
    node.decode(*node.says(Event.STOP, outcome="finished"))
    house.wait(2 * ABANDON_AFTER_SECONDS)
    assert not house.head.over

    house.merge(*house.own_member.says(Event.STOP, outcome="finished"))
    assert house.head.over


def test_nodes_that_never_come_are_not_waited_for_for_ever(house):
    house.merge(*house.own_member.says(Event.START))
    house.merge(*house.own_member.says(Event.STOP, outcome="finished"))
    assert not house.head.over

    house.wait(ABANDON_AFTER_SECONDS + 1)
    assert house.head.over


def test_ranks_of_a_node_that_is_lost_for_good_have_ended_once_all_others_have(house):
    house.running()
    house.merge(*house.own_member.says(Event.STOP, outcome="finished"))

    records = house.wait(ABANDON_AFTER_SECONDS + 2)

    ends = [r for r in records if r.event is Event.STOP]
    assert [(end.rank, end.attributes["outcome"], end.attributes["lost_node"]) for end in ends] == [
        (2, "died", "b"),
        (3, "died", "b"),
    ]
    assert house.head.over
    assert not [r for r in house.wait(5) if r.event is Event.STOP]


def test_while_our_own_ranks_run_a_lost_node_is_waited_for(house):
    house.running()

    records = house.wait(3 * ABANDON_AFTER_SECONDS)

    assert not [record for record in records if record.event is Event.STOP]


def test_a_head_that_is_restarted_still_knows_who_was_given_up(house):
    house.running()
    house.merge(*house.own_member.says(Event.STOP, outcome="finished"))
    house.wait(ABANDON_AFTER_SECONDS + 2)
    house.connection.close()
    house.start_at_attempt()

    assert last_tick(house.wait(2)).attributes["lost_nodes"] == ""
    assert (
        last_tick(house.wait(RECONNECT_GRACE_SECONDS + LOST_AFTER_SECONDS + 2)).attributes[
            "lost_nodes"
        ]
        == "b"
    )
