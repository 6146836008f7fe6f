"""Post: all that its ranks say reaches the head once, in their order, or is still in the spool."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.followers import House, steps, tick, word

from sentinel.cluster.follower import HEAD_LOST_SECONDS, LAST_WORDS_SECONDS, PULSE_SECONDS
from sentinel.model.record import Event


@pytest.fixture
def house(tmp_path):
    return House(tmp_path / "sentinel.db")


def test_what_is_read_goes_over_in_its_order_and_is_forgotten_once_it_is_confirmed(house):
    house.link.welcome()
    house.turn(*house.said(2))
    house.turn(*house.said(3))

    assert steps(house.link.confirm()) == [1, 2]
    house.turn(*house.said())
    assert steps(house.link.confirm()) == [3, 4, 5, 6]
    house.turn()

    assert house.spool.bytes == 0
    assert house.post.over


def test_nothing_of_a_node_is_judged_by_its_own_agent(house):
    house.link.welcome()

    assert house.turn(*house.said(3), tick()) == []


def test_one_parcel_is_under_way_at_a_time(house):
    house.link.welcome()
    for _ in range(5):
        house.turn(*house.said())

    assert steps(house.link.confirm()) == [1]
    house.turn()
    assert steps(house.link.confirm()) == [2, 3, 4, 5]


def test_a_row_that_is_not_stored_is_never_handed_over(house):
    house.link.welcome()
    house.post.turn(house.said(2))
    house.post.kept()

    assert house.link.sent == []


def test_what_is_read_before_there_is_a_head_waits_for_it(house):
    house.wait(5, word(1))
    house.link.welcome()
    house.turn()

    assert steps(house.link.read()) == [1] * 10


def test_after_a_break_the_rows_that_were_not_confirmed_come_again(house):
    house.link.welcome()
    house.turn(*house.said(2))
    house.link.confirm()
    house.turn(*house.said(2))
    house.link.read()
    house.link.linked = False
    house.turn(*house.said(2))

    house.link.welcome(row=1)
    house.turn()

    parcel = house.link.read()
    assert (parcel.number, parcel.first, parcel.last) == (1, 2, 3)
    assert steps(parcel) == [3, 4, 5, 6]


def test_a_head_that_died_between_its_commit_and_its_answer_tells_how_far_it_came(house):
    house.link.welcome()
    house.turn(*house.said(2))
    house.link.linked = False
    house.turn()

    house.link.welcome(row=1)
    house.turn(*house.said())

    assert steps(house.link.read()) == [3]


def test_a_head_that_lost_its_database_is_given_all_that_is_left(house):
    house.link.welcome()
    for _ in range(3):
        house.turn(*house.said())
        house.link.confirm()
    house.turn()
    house.link.linked = False
    house.turn(*house.said())

    house.link.welcome(row=0)
    house.turn()

    parcel = house.link.read()
    assert (parcel.first, parcel.last, steps(parcel)) == (4, 4, [4])


def test_a_node_that_is_started_again_goes_on_where_its_spool_is(house):
    house.turn(*house.said(2))
    name = house.spool.name
    house.begin()
    assert house.spool.name == name

    house.link.welcome()
    house.turn(*house.said())
    assert steps(house.link.confirm()) == [1, 2, 3]


def test_a_node_that_lost_its_database_is_another_spool(house, tmp_path):
    house.turn(*house.said(2))
    name = house.spool.name
    house.begin(tmp_path / "other.db")

    assert house.spool.name != name


def test_a_spool_that_is_full_gives_up_its_oldest_and_the_rest_goes_over(tmp_path):
    house = House(tmp_path / "sentinel.db", limit=2000)
    for _ in range(100):
        house.turn(*house.said())
    lost = house.tally.counts["sentinel_dropped_records_total", "spool"]
    assert 0 < lost < 100

    house.link.welcome()
    house.turn()

    parcel = house.link.read()
    assert steps(parcel) == [*range(int(lost) + 1, 101)]
    assert parcel.first == lost + 1


def test_what_was_not_stored_is_not_in_the_spool_of_the_next_agent(house):
    house.turn(*house.said())
    house.post.turn(house.said())
    house.connection.execute("begin")
    house.post.keep()
    house.connection.execute("rollback")
    house.connection.close()

    house.begin()
    house.link.welcome()
    house.turn()

    # The rings are read again from where they were stored: it comes from there.
    assert steps(house.link.read()) == [1]


def test_how_the_ranks_are_is_told_though_nothing_else_is_said(house):
    house.link.welcome()
    house.wait(PULSE_SECONDS + 1, tick(idle_seconds=4.0))
    first = house.link.confirm()
    house.wait(PULSE_SECONDS + 1, tick(idle_seconds=6.0))
    second = house.link.confirm()

    assert [record.values["idle_seconds"] for record in first.entries] == [4.0]
    assert [record.values["idle_seconds"] for record in second.entries] == [6.0]
    assert (second.first, second.last) == (1, 0)
    assert house.spool.bytes == 0


def test_what_was_measured_since_the_last_parcel_is_told_with_the_newest_tick(house):
    house.link.welcome()
    house.link.linked = False
    house.turn(tick(idle_seconds=1.0, memory_used=5.0, gpu_utilisation=50.0))
    house.turn(tick(idle_seconds=2.0))
    house.link.linked = True
    house.wait(PULSE_SECONDS + 1)

    (told,) = house.link.confirm().entries
    assert told.values["idle_seconds"] == 2.0
    assert told.values["gpu_utilisation"] == 50.0


def test_an_agent_stays_until_all_is_confirmed(house):
    house.link.welcome()
    house.turn(*house.said())
    assert not house.post.over
    house.link.confirm()
    house.turn()

    assert house.post.over


def test_an_agent_whose_head_never_comes_leaves_a_while_after_the_last_word(house):
    house.wait(LAST_WORDS_SECONDS + 30, word(1))
    assert not house.post.over, "the last word was only just said"

    house.wait(LAST_WORDS_SECONDS - 1)
    assert not house.post.over
    house.wait(2)
    assert house.post.over


def test_an_agent_that_was_stopped_holds_nobody_for_lost(house):
    house.link.welcome()
    house.turn(*house.said())
    house.turn(seconds=600.0)

    assert house.post.silent < HEAD_LOST_SECONDS
    assert not house.post.over


def test_a_clock_that_steps_holds_nobody_for_lost(house):
    house.link.welcome()
    house.turn(*house.said())
    for seconds in (3600.0, -7200.0, 3600.0):
        house.turn(seconds=seconds)

    assert house.post.silent < HEAD_LOST_SECONDS


def lone(house, deputy):
    """What is judged of a head that falls silent while ranks are running."""
    house.link.welcome()
    house.turn(*house.said())
    house.link.confirm(deputy)
    house.turn(*house.said())
    return house.wait(HEAD_LOST_SECONDS + 1, tick(idle_seconds=0.0))


def test_the_deputy_tells_of_a_head_that_is_silent(house):
    *_, last = lone(house, deputy=True)

    assert last.facts["head_lost"] == "a:1"
    assert last.values["nodes_lost"] == 1.0


def test_other_nodes_leave_that_to_the_deputy(house):
    assert lone(house, deputy=False) == []


def test_the_deputy_tells_of_nothing_once_its_own_ranks_have_ended(house):
    house.link.welcome()
    house.turn(*house.said())
    house.link.confirm(deputy=True)
    house.turn(word(2, Event.STOP))

    told = house.wait(HEAD_LOST_SECONDS + 1, tick())

    assert told
    assert all(record.values["nodes_lost"] == 0.0 for record in told)


def test_its_state_is_told_in_plain_words(house):
    house.turn(*house.said())

    state = house.post.state()

    assert state["linked"] is False
    assert state["spooled_bytes"] > 0


@pytest.mark.parametrize(("outcome", "told"), [("exception", 1.0), ("finished", 0.0)])
def test_a_run_that_falls_with_the_heads_node_is_told_of_by_its_deputy(house, outcome, told):
    """In DDP the other ranks raise at once; whoever ended well is nobody's emergency."""
    house.link.welcome()
    house.turn(word(1))
    house.link.confirm(deputy=True)
    stop = replace(word(2, Event.STOP), facts={"outcome": outcome})
    house.turn(stop)

    ticks = house.wait(HEAD_LOST_SECONDS + 1, tick())

    assert not house.post.over
    assert ticks[-1].values["nodes_lost"] == told
