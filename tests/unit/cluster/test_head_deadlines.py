"""Head: who is lost, who is only late, and when nothing more is to be heard."""

from __future__ import annotations

import pytest
from support.heads import House, last_tick

from sentinel.cluster.membership import FOR_GOOD_SECONDS, LOST_SECONDS, RETURN_SECONDS
from sentinel.model.record import Event


@pytest.fixture
def house(tmp_path):
    return House(tmp_path / "sentinel.db")


def test_a_node_that_falls_silent_is_lost_and_is_back_once_it_is_heard(house):
    node = house.running()
    assert last_tick(house.wait(LOST_SECONDS - 1)).values["nodes_lost"] == 0.0
    lost = last_tick(house.wait(2))
    assert (lost.values["nodes_lost"], lost.facts["lost_nodes"]) == (1.0, "b")
    assert lost.facts["lost"] == "2,3"
    assert [each["state"] for each in house.head.state()] == ["up", "lost"]

    node.parcel(node.tick())
    assert last_tick(house.wait(1)).values["nodes_lost"] == 0.0


def test_a_node_whose_ranks_have_ended_is_not_lost(house):
    node = house.running()
    node.parcel(*node.says(Event.STOP, outcome="finished"), node.tick("finished"))

    tick = last_tick(house.wait(LOST_SECONDS + 5))

    assert tick.values["nodes_lost"] == 0.0
    assert [each["state"] for each in house.head.state()] == ["up", "ended"]


def test_a_head_that_was_stopped_holds_nobody_for_lost(house):
    node = house.running()
    house.turn(seconds=600.0)
    tick = last_tick(house.turn(house.own.tick()))
    assert tick.values["nodes_lost"] == 0.0

    node.parcel(node.tick())
    assert last_tick(house.wait(LOST_SECONDS - 2)).values["nodes_lost"] == 0.0


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_clock_of_the_heads_that_steps_holds_nobody_for_lost(house, seconds):
    house.running()
    house.turn(seconds=seconds)

    assert last_tick(house.turn(house.own.tick())).values["nodes_lost"] == 0.0


def test_a_node_that_never_comes_back_to_a_head_that_was_killed_is_lost(house):
    house.running()
    house.connection.close()
    house.begin()

    ticks = house.wait(RETURN_SECONDS + LOST_SECONDS - 2)
    assert last_tick(ticks).values["nodes_lost"] == 0.0
    assert last_tick(house.wait(4)).facts["lost_nodes"] == "b"


def test_the_node_of_the_lowest_rank_that_is_heard_is_the_deputy(house):
    house.world = 6
    second, first = house.running(), house.node("c", (4, 5))
    first.parcel(*first.says(Event.START))
    house.turn(house.own.tick())
    house.turn(house.own.tick())

    house.hub.answers.clear()
    for node in (first, second):
        node.parcel(node.tick())
    house.turn()
    assert {slot: deputy for slot, _, _, deputy in house.hub.answers} == {
        first.slot: False,
        second.slot: True,
    }
    house.wait(LOST_SECONDS + 2, others=[first])
    assert house.hub.answers[-1][0] == first.slot
    assert house.hub.answers[-1][3]


def test_a_run_is_over_once_all_ranks_of_all_nodes_have_ended(house):
    node = house.running()
    house.turn(*house.own.says(Event.STOP, outcome="finished"))
    assert not house.head.over

    node.parcel(*node.says(Event.STOP, outcome="finished"))
    house.turn()
    assert house.head.over


def test_others_may_leave_first(house):
    node = house.running()
    node.parcel(*node.says(Event.STOP, outcome="finished"))
    house.wait(2 * FOR_GOOD_SECONDS)
    assert not house.head.over

    house.turn(*house.own.says(Event.STOP, outcome="finished"))
    assert house.head.over


def test_nodes_that_never_come_are_not_waited_for_for_ever(house):
    house.turn(*house.own.says(Event.START))
    house.turn(*house.own.says(Event.STOP, outcome="finished"))
    assert not house.head.over

    house.wait(FOR_GOOD_SECONDS + 1)
    assert house.head.over


def test_ranks_of_a_node_that_is_lost_for_good_have_ended_once_all_others_have(house):
    house.running()
    house.turn(*house.own.says(Event.STOP, outcome="finished"))

    records = house.wait(FOR_GOOD_SECONDS + 2)

    ends = [r for r in records if r.event is Event.STOP]
    assert [(end.rank, end.facts["outcome"], end.facts["lost"]) for end in ends] == [
        (2, "died", "b"),
        (3, "died", "b"),
    ]
    assert house.head.over
    assert not [r for r in house.wait(5) if r.event is Event.STOP]


def test_while_our_own_ranks_run_a_lost_node_is_waited_for(house):
    house.running()

    records = house.wait(3 * FOR_GOOD_SECONDS)

    assert not [record for record in records if record.event is Event.STOP]


def test_a_head_that_is_restarted_still_knows_who_was_given_up(house):
    house.running()
    house.turn(*house.own.says(Event.STOP, outcome="finished"))
    house.wait(FOR_GOOD_SECONDS + 2)
    house.connection.close()
    house.begin()

    assert last_tick(house.wait(2)).facts["lost_nodes"] == ""
    assert last_tick(house.wait(RETURN_SECONDS + LOST_SECONDS + 2)).facts["lost_nodes"] == "b"
