"""Post: all that its ranks say reaches the head once, in their order, or is still in the spool."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.followers import House, steps, tick, word

from sentinel.cluster.follower import (
    FINAL_DELIVERY_TIMEOUT_SECONDS,
    HEAD_LOST_AFTER_SECONDS,
    HEARTBEAT_INTERVAL_SECONDS,
)
from sentinel.model.record import Event


@pytest.fixture
def house(tmp_path):
    return House(tmp_path / "sentinel.db")


def test_what_is_read_goes_over_in_its_order_and_is_forgotten_once_it_is_confirmed(house):
    house.client.welcome()
    house.forward(*house.said(2))
    house.forward(*house.said(3))

    assert steps(house.client.confirm()) == [1, 2]
    house.forward(*house.said())
    assert steps(house.client.confirm()) == [3, 4, 5, 6]
    house.forward()

    assert house.spool.size_bytes == 0
    assert house.post.finished


def test_nothing_of_a_node_is_judged_by_its_own_agent(house):
    house.client.welcome()

    assert house.forward(*house.said(3), tick()) == []


def test_one_parcel_is_under_way_at_a_time(house):
    house.client.welcome()
    for _ in range(5):
        house.forward(*house.said())

    assert steps(house.client.confirm()) == [1]
    house.forward()
    assert steps(house.client.confirm()) == [2, 3, 4, 5]


def test_a_row_that_is_not_stored_is_never_handed_over(house):
    house.client.welcome()
    house.post.forward(house.said(2))
    house.post.after_commit()

    assert house.client.sent == []


def test_what_is_read_before_there_is_a_head_waits_for_it(house):
    house.wait(5, word(1))
    house.client.welcome()
    house.forward()

    assert steps(house.client.read()) == [1] * 10


def test_after_a_break_the_rows_that_were_not_confirmed_come_again(house):
    house.client.welcome()
    house.forward(*house.said(2))
    house.client.confirm()
    house.forward(*house.said(2))
    house.client.read()
    house.client.is_connected = False
    house.forward(*house.said(2))

    house.client.welcome(row=1)
    house.forward()

    parcel = house.client.read()
    assert (parcel.message_number, parcel.first_row, parcel.last_row) == (1, 2, 3)
    assert steps(parcel) == [3, 4, 5, 6]


def test_a_head_that_died_between_its_commit_and_its_answer_tells_how_far_it_came(house):
    house.client.welcome()
    house.forward(*house.said(2))
    house.client.is_connected = False
    house.forward()

    house.client.welcome(row=1)
    house.forward(*house.said())

    assert steps(house.client.read()) == [3]


def test_a_head_that_lost_its_database_is_given_all_that_is_left(house):
    house.client.welcome()
    for _ in range(3):
        house.forward(*house.said())
        house.client.confirm()
    house.forward()
    house.client.is_connected = False
    house.forward(*house.said())

    house.client.welcome(row=0)
    house.forward()

    parcel = house.client.read()
    assert (parcel.first_row, parcel.last_row, steps(parcel)) == (4, 4, [4])


def test_a_node_that_is_started_again_goes_on_where_its_spool_is(house):
    house.forward(*house.said(2))
    name = house.spool.name
    house.begin()
    assert house.spool.name == name

    house.client.welcome()
    house.forward(*house.said())
    assert steps(house.client.confirm()) == [1, 2, 3]


def test_a_node_that_lost_its_database_is_another_spool(house, tmp_path):
    house.forward(*house.said(2))
    name = house.spool.name
    house.begin(tmp_path / "other.db")

    assert house.spool.name != name


def test_a_spool_that_is_full_gives_up_its_oldest_and_the_rest_goes_over(tmp_path):
    house = House(tmp_path / "sentinel.db", limit=2000)
    for _ in range(100):
        house.turn(*house.said())
    lost = house.tally.values["sentinel_dropped_records_total", "spool"]
    assert 0 < lost < 100

    house.link.welcome()
    house.turn()

    parcel = house.link.read()
    assert steps(parcel) == [*range(int(lost) + 1, 101)]
    assert parcel.first_row == lost + 1


def test_what_was_not_stored_is_not_in_the_spool_of_the_next_agent(house):
    house.forward(*house.said())
    house.post.forward(house.said())
    house.connection.execute("begin")
    house.post.persist()
    house.connection.execute("rollback")
    house.connection.close()

    house.begin()
    house.client.welcome()
    house.forward()

    # The rings are read again from where they were stored: it comes from there.
    assert steps(house.client.read()) == [1]


def test_how_the_ranks_are_is_told_though_nothing_else_is_said(house):
    house.client.welcome()
    house.wait(HEARTBEAT_INTERVAL_SECONDS + 1, tick(idle_seconds=4.0))
    first = house.client.confirm()
    house.wait(HEARTBEAT_INTERVAL_SECONDS + 1, tick(idle_seconds=6.0))
    second = house.client.confirm()

    assert [record.values["idle_seconds"] for record in first.entries] == [4.0]
    assert [record.values["idle_seconds"] for record in second.entries] == [6.0]
    assert (second.first_row, second.last_row) == (1, 0)
    assert house.spool.size_bytes == 0


def test_what_was_measured_since_the_last_parcel_is_told_with_the_newest_tick(house):
    house.client.welcome()
    house.client.is_connected = False
    house.forward(tick(idle_seconds=1.0, memory_used=5.0, gpu_utilisation=50.0))
    house.forward(tick(idle_seconds=2.0))
    house.client.is_connected = True
    house.wait(HEARTBEAT_INTERVAL_SECONDS + 1)

    (told,) = house.client.confirm().entries
    assert told.values["idle_seconds"] == 2.0
    assert told.values["gpu_utilisation"] == 50.0


def test_an_agent_stays_until_all_is_confirmed(house):
    house.client.welcome()
    house.forward(*house.said())
    assert not house.post.finished
    house.client.confirm()
    house.forward()

    assert house.post.finished


def test_an_agent_whose_head_never_comes_leaves_a_while_after_the_last_word(house):
    house.wait(FINAL_DELIVERY_TIMEOUT_SECONDS + 30, word(1))
    assert not house.post.finished, "the last word was only just said"

    house.wait(FINAL_DELIVERY_TIMEOUT_SECONDS - 1)
    assert not house.post.finished
    house.wait(2)
    assert house.post.finished


def test_an_agent_that_was_stopped_holds_nobody_for_lost(house):
    house.client.welcome()
    house.forward(*house.said())
    house.forward(seconds=600.0)

    assert house.post.silent_seconds < HEAD_LOST_AFTER_SECONDS
    assert not house.post.finished


def test_a_clock_that_steps_holds_nobody_for_lost(house):
    house.client.welcome()
    house.forward(*house.said())
    for seconds in (3600.0, -7200.0, 3600.0):
        house.forward(seconds=seconds)

    assert house.post.silent_seconds < HEAD_LOST_AFTER_SECONDS


def lone(house, deputy):
    """What is judged of a head that falls silent while ranks are running."""
    house.client.welcome()
    house.forward(*house.said())
    house.client.confirm(deputy)
    house.forward(*house.said())
    return house.wait(HEAD_LOST_AFTER_SECONDS + 1, tick(idle_seconds=0.0))


def test_the_deputy_tells_of_a_head_that_is_silent(house):
    *_, last = lone(house, deputy=True)

    assert last.attributes["head_lost"] == "a:1"
    assert last.values["nodes_lost"] == 1.0


def test_other_nodes_leave_that_to_the_deputy(house):
    assert lone(house, deputy=False) == []


def test_the_deputy_tells_of_nothing_once_its_own_ranks_have_ended(house):
    house.client.welcome()
    house.forward(*house.said())
    house.client.confirm(deputy=True)
    house.forward(word(2, Event.STOP))

    told = house.wait(HEAD_LOST_AFTER_SECONDS + 1, tick())

    assert told
    assert all(record.values["nodes_lost"] == 0.0 for record in told)


def test_its_state_is_told_in_plain_words(house):
    house.forward(*house.said())

    state = house.post.state()

    assert state["linked"] is False
    assert state["spooled_bytes"] > 0


@pytest.mark.parametrize(("outcome", "told"), [("exception", 1.0), ("finished", 0.0)])
def test_a_run_that_falls_with_the_heads_node_is_told_of_by_its_deputy(house, outcome, told):
    """In DDP the other ranks raise at once; whoever ended well is nobody's emergency."""
    house.client.welcome()
    house.forward(word(1))
    house.client.confirm(deputy=True)
    stop = replace(word(2, Event.STOP), facts={"outcome": outcome})
    house.forward(stop)

    ticks = house.wait(HEAD_LOST_AFTER_SECONDS + 1, tick())

    assert not house.post.finished
    assert ticks[-1].values["nodes_lost"] == told
