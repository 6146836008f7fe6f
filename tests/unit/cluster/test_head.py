"""Head: what all nodes say is one run's, taken once, and confirmed once it is safe."""

from __future__ import annotations

import pytest
from support.heads import House, Node, last_tick, told
from support.message_stores import refusals

from sentinel.cluster.membership import ABANDON_AFTER_SECONDS
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.store.database import transaction
from sentinel.transport.batch_codec import BatchEncoder


@pytest.fixture
def house(tmp_path):
    return House(tmp_path / "sentinel.db")


def test_records_of_all_nodes_are_those_of_one_run(house):
    node = house.running()
    node.decode(*node.says(step=5))

    records = house.merge(*house.own_member.says(step=5))

    assert told(records) == [(0, 0, 5), (1, 0, 5), (2, 0, 5), (3, 0, 5)]
    assert {record.run for record in records if record.rank >= 2} == {"run"}


def test_a_parcel_is_confirmed_only_once_it_is_kept(house):
    node = house.running()
    house.server.answers.clear()
    node.decode(*node.says(step=1))

    house.head_address.merge(())
    assert house.server.answers == []
    house.head_address.after_commit()
    ((slot, number, row, _),) = house.server.answers
    assert (slot, number, row) == (node.slot, 2, 2)


def test_a_head_that_dies_between_commit_and_answer_takes_nothing_twice(house):
    node = house.running()
    node.decode(*node.says(step=1))
    house.head_address.merge(())
    with transaction(house.connection):
        house.head_address.persist()
    house.connection.close()

    house.start_at_attempt()
    node.hello()
    house.merge()
    assert house.server.answers == [(node.slot, 0, 2, False)]
    node.decode(*node.says(step=2))
    assert told(house.merge()) == [(2, 0, 2), (3, 0, 2)]


def test_a_head_that_dies_before_its_commit_is_told_all_of_it_again(house):
    node = house.running()
    node.decode(*node.says(step=1))
    house.head_address.merge(())
    house.connection.close()

    house.start_at_attempt()
    node.hello()
    house.merge()
    assert house.server.answers == [(node.slot, 0, 1, False)]
    node.decode(*node.says(step=1), *node.says(step=2), row=1)
    assert told(house.merge()) == [(2, 0, 1), (3, 0, 1), (2, 0, 2), (3, 0, 2)]


def test_a_head_that_lost_its_database_takes_the_nodes_from_where_they_are(house, tmp_path):
    house.running()
    house.start_at_attempt(tmp_path / "other.db")
    node = house.node()
    assert house.server.answers == [(node.slot, 0, 0, False)]

    node.decode(*node.says(step=9), row=7)

    assert told(house.merge()) == [(2, 0, 9), (3, 0, 9)]
    assert refusals(house.counters)["gap"] == 7.0


def test_a_node_that_lost_its_database_says_all_again_and_is_taken_once(house):
    node = house.running()
    node.decode(*node.says(step=1))
    house.merge()
    node.hello(spool="another")
    house.merge()
    node.last_row = 0
    node.decode(*node.says(Event.START), *node.says(step=1), *node.says(step=2))

    assert told(house.merge()) == [(2, 0, 2), (3, 0, 2)]
    assert refusals(house.counters)["repeated"] == 4.0


def test_a_node_that_comes_again_has_one_slot(house):
    node = house.running()
    old = node.slot
    node.hello()
    house.merge()
    assert house.server.dropped == [old]

    house.server.parcels.append((old, BatchEncoder().encode(node.says(step=1), 2, 2, 0.0)))
    assert told(house.merge()) == []
    node.decode(*node.says(step=1))
    assert told(house.merge()) == [(2, 0, 1), (3, 0, 1)]


@pytest.mark.parametrize("what", ["damaged", "repeated", "gap"])
def test_a_parcel_that_is_not_the_next_is_counted_and_its_node_begins_anew(house, what):
    node = house.running()
    data = node.decode(*node.says(step=1))
    if what == "gap":
        house.server.parcels.clear()
        node.decode(*node.says(step=2))
    house.merge()
    if what == "damaged":
        house.server.parcels.append((node.slot, b"garbage"))
    if what == "repeated":
        house.server.parcels.append((node.slot, data))
    house.merge()

    assert refusals(house.counters) == {what: 1.0}
    assert house.server.dropped == [node.slot]
    node.hello()
    house.merge()
    node.last_row = 2 if what != "gap" else 1
    node.decode(*node.says(step=2))
    assert told(house.merge()) == [(2, 0, 2), (3, 0, 2)]


def test_attempts_that_nodes_count_for_themselves_are_one_of_the_run(house):
    house.running()
    late = house.node("c", (2, 3), run="other")
    house.merge(*house.own_member.says(Event.START, attempt=1))
    late.decode(*late.says(Event.START, attempt=7), *late.says(step=1, attempt=7))

    records = house.merge()

    assert told(records, Event.START) == [(2, 1, 1), (3, 1, 1)]
    assert told(records) == [(2, 1, 1), (3, 1, 1)]


def test_which_attempts_are_the_runs_survives_the_head(house):
    node = house.running()
    house.merge(*house.own_member.says(Event.START, attempt=1))
    node.decode(*node.says(Event.START, attempt=4))
    house.merge()
    house.connection.close()

    house.start_at_attempt()
    node.hello()
    house.merge()
    node.decode(*node.says(step=3, attempt=4))
    assert told(house.merge()) == [(2, 1, 3), (3, 1, 3)]


def test_all_ranks_of_the_run_are_expected(house):
    (first, *_) = house.merge(*house.own_member.says(Event.START))

    assert first.values["expected_ranks"] == 4.0


@pytest.mark.parametrize("off", [3600.0, -3600.0])
def test_times_of_a_node_whose_clock_is_off_are_ours(house, off):
    house.merge(*house.own_member.says(Event.START))
    node = house.node(off=off)
    node.decode(*node.says(Event.START), *node.says(step=1))

    records = house.merge(seconds=0.0)

    assert {record.time for record in records} == {house.now}
    assert house.head_address.state()[1]["skew_seconds"] == -off


def test_the_ticks_of_all_nodes_are_one(house):
    node = house.running()
    node.decode(node.tick())

    (tick,) = house.merge(house.own_member.tick())

    assert tick.rank == WHOLE_RUN
    assert (tick.values["nodes"], tick.values["nodes_lost"]) == (2.0, 0.0)
    assert tick.values["ranks_running"] == 4.0


def test_a_flood_of_hellos_is_answered_and_nothing_else_changes(house):
    house.running()
    for number in range(500):
        Node(house, f"host-{number}", (), run=f"r{number}").hello()
    house.merge()

    assert len(house.server.answers) >= 500
    assert last_tick(house.merge(house.own_member.tick())).values["nodes"] == 2.0


def test_nodes_that_share_a_name_are_still_heard_each(house):
    """Containers that were all given one host name, and one run id."""
    house.world = 6
    one = house.running()
    two = Node(house, "b", (4, 5), spool="of the other")
    seen = []
    for step in range(1, 6):
        for node in (one, two):
            node.hello()
            house.merge()
            (row,) = [row for slot, _, row, _ in house.server.answers[-1:] if slot == node.slot]
            node.row = max(node.row, row)
            node.parcel(*(node.says(Event.START) if step == 1 else ()), *node.says(step=step))
            seen += told(house.merge())

    assert sorted(seen) == [(rank, 0, step) for rank in (2, 3, 4, 5) for step in range(1, 6)]


def test_what_rank_0_gathered_leaves_its_place_to_the_ranks_own_node(house):
    """A collective that ends is followed by the ranks' own agents, in the attempt that there is."""
    gathered = [house.own_member.word(rank, Event.START, via_collective="yes") for rank in (2, 3)]
    house.merge(*house.own_member.says(Event.START), *gathered)
    node = house.node()
    node.decode(*node.says(Event.START), *node.says(step=3))

    records = house.merge(*house.own_member.says(step=3))

    assert told(records) == [(0, 0, 3), (1, 0, 3), (2, 0, 3), (3, 0, 3)]
    assert house.head_address.attempt_map.current == 0


def test_what_rank_0_gathered_and_reads_late_does_not_count_beside_what_the_node_says(house):
    """Rank 0 puts away what was left to it at its next step, which may take minutes."""
    gathered = [house.own_member.word(rank, Event.START, via_collective="yes") for rank in (2, 3)]
    house.merge(*house.own_member.says(Event.START), *gathered)
    late = [house.own_member.word(rank, step=3) for rank in (2, 3)]
    assert told(house.merge(*late)) == [(2, 0, 3), (3, 0, 3)]
    node = house.node()
    node.decode(*node.says(Event.START), *node.says(step=3), *node.says(step=4))
    house.merge()
    ends = [house.own_member.word(rank, Event.STOP, outcome="finished") for rank in (2, 3)]
    records = house.merge(*house.own_member.says(step=4), *late, *gathered, *ends)

    assert told(records) == [(0, 0, 4), (1, 0, 4)]
    assert told(records, Event.START) == []
    assert told(records, Event.STOP) == [(2, 0, 1), (3, 0, 1)]


@pytest.mark.parametrize(
    "end",
    [{"outcome": "unknown"}, {"outcome": "finished", "collective": "off: rank 3 ended"}],
    ids=["unknown", "elsewhere"],
)
def test_a_head_stays_for_nodes_whose_ranks_it_let_go_of(house, end):
    """They raise a moment after rank 0, and only then have an agent, which must find its head."""
    gathered = [house.own_member.word(rank, Event.START, via_collective="yes") for rank in (2, 3)]
    house.merge(*house.own_member.says(Event.START), *gathered)
    ends = [house.own_member.word(rank, Event.STOP, **end) for rank in (2, 3)]
    house.merge(*house.own_member.says(Event.STOP, outcome="exception"), *ends)
    house.wait(ABANDON_AFTER_SECONDS - 5)
    assert (house.head_address.over, house.server.over) == (False, False)
    node = house.node()
    node.decode(*node.says(Event.START), *node.says(Event.STOP, step=9, outcome="exception"))
    assert told(house.merge(), Event.STOP) == [(2, 0, 9), (3, 0, 9)]
    house.wait(10.0)

    assert (house.head_address.over, house.server.over) == (True, True)


def test_a_head_of_which_all_ranks_said_how_they_ended_is_over_at_once(house):
    node = house.running()
    node.decode(*node.says(Event.STOP, outcome="exception"), node.tick("failed"))
    house.merge(
        *house.own_member.says(Event.STOP, outcome="exception"), house.own_member.tick("failed")
    )

    assert house.server.over


def test_a_node_that_comes_back_without_any_memory_is_part_of_the_newest_attempt(house):
    """A container that is started anew has its old name, and counts its attempts from 0 again."""
    node = house.running()
    node.decode(*node.says(step=1), *node.says(step=2))
    house.merge()
    house.merge(*house.own_member.says(Event.START, attempt=1))
    node.hello(spool="another")
    house.merge()
    node.last_row, node.began = 0, 0.0
    node.decode(*node.says(Event.START), *node.says(step=1))

    assert told(house.merge()) == [(2, 1, 1), (3, 1, 1)]
