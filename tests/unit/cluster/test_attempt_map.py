"""Generations: the attempts of nodes that ran together are one attempt of the run."""

from __future__ import annotations

from itertools import pairwise, permutations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from sentinel.cluster.attempt_map import MAX_ATTEMPTS_KEPT, AttemptMap


def placed(generations, *starts, world=4):
    """Where each start went: `("A0", ranks)` or `("A0", ranks, world)`, with `@` and a time."""
    out = []
    for start, ranks, *size in starts:
        name, _, time = start.partition("@")
        numbers = {
            generations.assign(
                name[0], int(name[1:]), rank, size[0] if size else world, time=float(time or 0)
            )
            for rank in ranks
        }
        assert len(numbers) == 1
        out.append(numbers.pop())
    return out


LOW, HIGH, ALL = (0, 1), (2, 3), (0, 1, 2, 3)


def test_there_is_no_attempt_before_any_began():
    generations = AttemptMap()

    assert generations.current == -1
    assert generations.run_attempt("A", 0) is None


@pytest.mark.parametrize("order", [*permutations([("A0", LOW), ("B3", (2,)), ("C7", (3,))])])
def test_nodes_that_begin_together_are_one_attempt_in_whichever_order(order):
    generations = AttemptMap()

    assert placed(generations, *order) == [0, 0, 0]
    assert [
        generations.run_attempt("A", 0),
        generations.run_attempt("B", 3),
        generations.run_attempt("C", 7),
    ] == [0, 0, 0]
    assert generations.current == 0


@pytest.mark.parametrize("starts", [*permutations([("A1", LOW), ("B1", HIGH)])])
@pytest.mark.parametrize("again", [True, False], ids=["same ranks", "ranks swapped"])
def test_a_restart_of_all_is_the_next_attempt(starts, again):
    generations = AttemptMap()
    placed(generations, ("A0", LOW), ("B0", HIGH))
    if not again:
        starts = [(name, HIGH if ranks is LOW else LOW) for name, ranks in starts]

    assert placed(generations, *starts) == [1, 1]
    assert generations.run_attempt("A", 0) == 0


@pytest.mark.parametrize("back", ["B1", "B5", "C0"], ids=["same", "numbers skipped", "rebooted"])
@pytest.mark.parametrize("first", [True, False], ids=["it first", "the others first"])
def test_a_node_that_was_lost_comes_back(back, first):
    generations = AttemptMap()
    assert placed(generations, ("A0", LOW), ("B0", HIGH)) == [0, 0]
    assert placed(generations, ("A1", LOW, 2)) == [1]
    starts = [(back, HIGH), ("A2", LOW)]

    assert placed(generations, *(starts if first else starts[::-1])) == [2, 2]


def test_a_node_that_takes_the_place_of_a_lost_one_at_once_begins_the_next_attempt():
    generations = AttemptMap()
    placed(generations, ("A0", LOW), ("B0", HIGH))

    assert placed(generations, ("C0", HIGH), ("A1", LOW)) == [1, 1]


def test_the_words_of_an_old_attempt_keep_its_number():
    generations = AttemptMap()
    placed(generations, ("A0", LOW), ("B0", HIGH), ("A1", LOW))

    assert placed(generations, ("B0", (3,))) == [0]
    assert placed(generations, ("B1", HIGH)) == [1]


def test_a_start_behind_a_later_one_of_its_node_is_old():
    generations = AttemptMap()
    placed(generations, ("A0", LOW), ("A5", LOW))

    assert placed(generations, ("A3", LOW)) == [0]
    assert generations.current == 1


def test_ranks_that_meet_elsewhere_are_another_attempt():
    generations = AttemptMap()

    assert generations.assign("A", 0, 0, 4, "29500") == 0
    assert generations.assign("B", 0, 2, 4, "29501") == 1
    assert generations.assign("C", 0, 3, 4, "29501") == 1
    assert generations.assign("D", 0, 1, 4) == 1


def test_a_node_whose_start_was_lost_joins_the_newest():
    generations = AttemptMap()
    placed(generations, ("A0", LOW), ("A1", LOW))

    assert placed(generations, ("B0", HIGH, 0)) == [1]


def test_one_whose_start_was_lost_begins_an_attempt_that_others_join():
    generations = AttemptMap()

    assert placed(generations, ("B0", HIGH, 0), ("A0", LOW, 4)) == [0, 0]
    assert placed(generations, ("C0", LOW, 2)) == [1]


def test_a_node_that_is_heard_late_by_whole_attempts_finds_its_own_by_their_times():
    generations = AttemptMap()
    placed(generations, ("A0@100", LOW), ("A1@103", LOW), ("A2@106", LOW))

    late = ("B0@100.4", HIGH), ("B1@102.9", HIGH), ("B2@107", HIGH)
    assert placed(generations, *late) == [0, 1, 2]


def test_a_clock_that_nobody_set_loses_nothing():
    generations = AttemptMap()

    assert placed(generations, ("A0@5000", LOW), ("B0@1400", HIGH)) == [0, 0]
    assert placed(generations, ("A1@5100", LOW), ("B1@1500", HIGH)) == [1, 1]
    assert placed(generations, ("B2@1600", HIGH), ("A2@5200", LOW)) == [2, 2]
    assert placed(generations, ("C0@9", HIGH), ("A3@5300", LOW)) == [3, 3]


def test_a_crash_loop_of_one_node_stays_small_and_the_other_follows():
    generations = AttemptMap()
    for attempt in range(500):
        name = f"A{attempt}@{1000 + 2 * attempt}"
        assert placed(generations, (name, LOW)) == [attempt]

    assert len(generations.serialize()) < 4000
    assert placed(generations, ("B0@1000.1", HIGH), ("B499@1998.5", HIGH)) == [467, 499]
    assert generations.current - MAX_ATTEMPTS_KEPT == 467


def test_it_goes_on_where_it_was():
    generations = AttemptMap()
    placed(generations, ("A0", LOW), ("B0", HIGH), ("A1", LOW))
    generations.assign("A", 1, 5, 4, "29500", started_at=12.5)
    before = generations.serialize()
    generations.assign("A", 1, 6, 4)
    again = AttemptMap.deserialize(generations.serialize())

    assert again == generations != AttemptMap.deserialize(before)
    assert placed(again, ("B1", HIGH)) == [1]
    assert AttemptMap.deserialize("") == AttemptMap()


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"attempts": {"0": [1]}, "nodes": {}}'])
def test_text_that_is_something_else_is_refused(text):
    with pytest.raises(ValueError, match="these are no attempts of nodes"):
        AttemptMap.deserialize(text)


@st.composite
def restarts(draw):
    """A run of some nodes, all of which take part in each attempt: its starts in order heard."""
    nodes = draw(st.integers(2, 4))
    gaps = draw(st.lists(st.floats(2.0, 300.0), min_size=2, max_size=6))
    begun = [1e6]
    for gap in gaps:
        begun.append(begun[-1] + gap)
    starts = []
    for attempt, (this, following) in enumerate(pairwise(begun)):
        for node, ranks in enumerate(draw(st.permutations(range(nodes)))):
            delay = draw(st.floats(0.0, 0.4)) * (following - this)
            starts.append((node, attempt, ranks, this + delay))
    # Each node's own in order, those of different nodes as it comes.
    turns = draw(st.permutations([node for node, *_ in starts]))
    own = {node: [each for each in starts if each[0] == node][::-1] for node in range(nodes)}
    return [own[node].pop() for node in turns], draw(st.lists(st.integers(0, 9), min_size=nodes))


@settings(max_examples=2 * settings.default.max_examples)
@given(restarts())
def test_restarts_of_all_are_told_apart_in_whatever_order_nodes_are_heard(story):
    starts, offsets = story
    generations, world = AttemptMap(), 2 * len({node for node, *_ in starts})

    for node, attempt, place, time in starts:
        for rank in (2 * place, 2 * place + 1):
            theirs = attempt + offsets[node]
            assert generations.assign(str(node), theirs, rank, world, started_at=time) == attempt
