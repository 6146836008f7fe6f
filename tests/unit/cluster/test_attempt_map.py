"""The attempt map assigns attempts of nodes that ran together to one attempt of the run."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.cluster.attempt_map import MAX_ATTEMPTS_KEPT, AttemptMap


def assign_starts(attempt_map, *starts, world=4):
    """The attempt of each start: `("A0", ranks)` or `("A0", ranks, world)`; "A0@5" starts at 5."""
    out = []
    for start, ranks, *size in starts:
        name, _, time = start.partition("@")
        numbers = {
            attempt_map.assign(
                name[0],
                int(name[1:]),
                rank,
                size[0] if size else world,
                started_at=float(time or 0),
            )
            for rank in ranks
        }
        assert len(numbers) == 1
        out.append(numbers.pop())
    return out


LOW, HIGH, ALL = (0, 1), (2, 3), (0, 1, 2, 3)


def test_there_is_no_attempt_before_the_first_start():
    attempt_map = AttemptMap()

    assert attempt_map.current == -1
    assert attempt_map.run_attempt("A", 0) is None


@pytest.mark.parametrize("order", [*permutations([("A0", LOW), ("B3", (2,)), ("C7", (3,))])])
def test_nodes_that_start_together_are_one_attempt_in_any_order(order):
    attempt_map = AttemptMap()

    assert assign_starts(attempt_map, *order) == [0, 0, 0]
    assert [
        attempt_map.run_attempt("A", 0),
        attempt_map.run_attempt("B", 3),
        attempt_map.run_attempt("C", 7),
    ] == [0, 0, 0]
    assert attempt_map.current == 0


@pytest.mark.parametrize("starts", [*permutations([("A1", LOW), ("B1", HIGH)])])
@pytest.mark.parametrize("again", [True, False], ids=["same ranks", "ranks swapped"])
def test_a_restart_of_all_nodes_is_the_next_attempt(starts, again):
    attempt_map = AttemptMap()
    assign_starts(attempt_map, ("A0", LOW), ("B0", HIGH))
    if not again:
        starts = [(name, HIGH if ranks is LOW else LOW) for name, ranks in starts]

    assert assign_starts(attempt_map, *starts) == [1, 1]
    assert attempt_map.run_attempt("A", 0) == 0


@pytest.mark.parametrize("back", ["B1", "B5", "C0"], ids=["same", "numbers skipped", "rebooted"])
@pytest.mark.parametrize("first", [True, False], ids=["the lost node first", "the others first"])
def test_a_lost_node_that_returns_joins_the_next_attempt(back, first):
    attempt_map = AttemptMap()
    assert assign_starts(attempt_map, ("A0", LOW), ("B0", HIGH)) == [0, 0]
    assert assign_starts(attempt_map, ("A1", LOW, 2)) == [1]
    starts = [(back, HIGH), ("A2", LOW)]

    assert assign_starts(attempt_map, *(starts if first else starts[::-1])) == [2, 2]


def test_a_replacement_of_a_lost_node_starts_the_next_attempt():
    attempt_map = AttemptMap()
    assign_starts(attempt_map, ("A0", LOW), ("B0", HIGH))

    assert assign_starts(attempt_map, ("C0", HIGH), ("A1", LOW)) == [1, 1]


def test_records_of_an_old_attempt_keep_its_number():
    attempt_map = AttemptMap()
    assign_starts(attempt_map, ("A0", LOW), ("B0", HIGH), ("A1", LOW))

    assert assign_starts(attempt_map, ("B0", (3,))) == [0]
    assert assign_starts(attempt_map, ("B1", HIGH)) == [1]


def test_a_start_that_arrives_after_a_later_one_of_its_node_is_old():
    attempt_map = AttemptMap()
    assign_starts(attempt_map, ("A0", LOW), ("A5", LOW))

    assert assign_starts(attempt_map, ("A3", LOW)) == [0]
    assert attempt_map.current == 1


def test_ranks_with_another_master_port_are_another_attempt():
    attempt_map = AttemptMap()

    assert attempt_map.assign("A", 0, 0, 4, "29500") == 0
    assert attempt_map.assign("B", 0, 2, 4, "29501") == 1
    assert attempt_map.assign("C", 0, 3, 4, "29501") == 1
    assert attempt_map.assign("D", 0, 1, 4) == 1


def test_a_node_whose_start_was_lost_joins_the_newest_attempt():
    attempt_map = AttemptMap()
    assign_starts(attempt_map, ("A0", LOW), ("A1", LOW))

    assert assign_starts(attempt_map, ("B0", HIGH, 0)) == [1]


def test_an_attempt_of_a_node_whose_start_was_lost_is_joined_by_others():
    attempt_map = AttemptMap()

    assert assign_starts(attempt_map, ("B0", HIGH, 0), ("A0", LOW, 4)) == [0, 0]
    assert assign_starts(attempt_map, ("C0", LOW, 2)) == [1]


def test_starts_that_arrive_several_attempts_late_are_assigned_by_time():
    attempt_map = AttemptMap()
    assign_starts(attempt_map, ("A0@100", LOW), ("A1@103", LOW), ("A2@106", LOW))

    late = ("B0@100.4", HIGH), ("B1@102.9", HIGH), ("B2@107", HIGH)
    assert assign_starts(attempt_map, *late) == [0, 1, 2]


def test_a_wrong_clock_does_not_split_attempts():
    attempt_map = AttemptMap()

    assert assign_starts(attempt_map, ("A0@5000", LOW), ("B0@1400", HIGH)) == [0, 0]
    assert assign_starts(attempt_map, ("A1@5100", LOW), ("B1@1500", HIGH)) == [1, 1]
    assert assign_starts(attempt_map, ("B2@1600", HIGH), ("A2@5200", LOW)) == [2, 2]
    assert assign_starts(attempt_map, ("C0@9", HIGH), ("A3@5300", LOW)) == [3, 3]


def test_a_crash_loop_of_one_node_is_bounded_in_memory():
    attempt_map = AttemptMap()
    for attempt in range(500):
        name = f"A{attempt}@{1000 + 2 * attempt}"
        assert assign_starts(attempt_map, (name, LOW)) == [attempt]

    assert len(attempt_map.serialize()) < 4000
    assert assign_starts(attempt_map, ("B0@1000.1", HIGH), ("B499@1998.5", HIGH)) == [467, 499]
    assert attempt_map.current - MAX_ATTEMPTS_KEPT == 467


def test_a_deserialized_map_equals_the_serialized_one():
    attempt_map = AttemptMap()
    assign_starts(attempt_map, ("A0", LOW), ("B0", HIGH), ("A1", LOW))
    attempt_map.assign("A", 1, 5, 4, "29500", started_at=12.5)
    before = attempt_map.serialize()
    attempt_map.assign("A", 1, 6, 4)
    again = AttemptMap.deserialize(attempt_map.serialize())

    assert again == attempt_map != AttemptMap.deserialize(before)
    assert assign_starts(again, ("B1", HIGH)) == [1]
    assert AttemptMap.deserialize("") == AttemptMap()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"attempts": {"0": [1]}, "nodes": {}}'])
def test_deserializing_other_text_raises(text):
    with pytest.raises(ValueError, match="not a serialized attempt map"):
        AttemptMap.deserialize(text)


@st.composite
def restarts(draw):
    """The starts of a run whose nodes all take part in each attempt, in order of arrival."""
    nodes = draw(st.integers(2, 4))
    gaps = draw(st.lists(st.floats(2.0, 300.0), min_size=2, max_size=6))
    start_times = [1e6]
    for gap in gaps:
        start_times.append(start_times[-1] + gap)
    starts = []
    for attempt, (this, following) in enumerate(pairwise(start_times)):
        for node, ranks in enumerate(draw(st.permutations(range(nodes)))):
            delay = draw(st.floats(0.0, 0.4)) * (following - this)
            starts.append((node, attempt, ranks, this + delay))
    # In order for each node, and in any order over nodes.
    order = draw(st.permutations([node for node, *_ in starts]))
    own = {node: [each for each in starts if each[0] == node][::-1] for node in range(nodes)}
    return [own[node].pop() for node in order], draw(st.lists(st.integers(0, 9), min_size=nodes))


@settings(max_examples=2 * settings.default.max_examples)
@given(restarts())
def test_restarts_are_separate_attempts_in_any_order_of_arrival(starts_and_offsets):
    starts, offsets = starts_and_offsets
    attempt_map, world = AttemptMap(), 2 * len({node for node, *_ in starts})

    for node, attempt, place, time in starts:
        for rank in (2 * place, 2 * place + 1):
            node_attempt = attempt + offsets[node]
            assert (
                attempt_map.assign(str(node), node_attempt, rank, world, started_at=time) == attempt
            )
