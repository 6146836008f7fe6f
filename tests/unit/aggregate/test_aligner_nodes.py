"""Align over several nodes: ranks that come late, are lost, speak again, or come back as others."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.aggregate.aligner import Aligner
from sentinel.aggregate.rank_membership import NODE_JOIN_SECONDS
from sentinel.live.liveness import FAILED_OUTCOMES
from sentinel.model.record import WHOLE_RUN, Event, Record

DROPPED = "sentinel_dropped_records_total"


def start(rank, *, expected=4, local=2, attempt=0):
    values = {
        "local_world_size": float(local),
        "world_size": float(expected),
        "expected_ranks": float(expected),
    }
    return Record("run", rank, 0, 100.0, Event.START, values=values, attempt=attempt)


def step(rank, beat, *, attempt=0, **values):
    return Record(
        "run",
        rank,
        beat,
        100.0 + beat,
        values=values or {"loss": 1.0},
        attempt=attempt,
        step_index=beat,
    )


def stop(rank, outcome="finished", *, attempt=0):
    facts = {"outcome": outcome}
    return Record(
        "run", rank, 9, 200.0, Event.STOP, attributes=facts, attempt=attempt, step_index=9
    )


def tick(time, lost="", attempt=0, state="running", away=""):
    facts = {"lost_ranks": lost, "state": state, "unreachable_ranks": away}
    return Record("run", WHOLE_RUN, 0, time, Event.HEARTBEAT, attributes=facts, attempt=attempt)


def fed(aligner, *records):
    """The combined records that come of these, ticks left out."""
    out = [made for record in records for made in aligner.process(record)]
    return [r for r in out if r.rank == WHOLE_RUN and r.event is not Event.HEARTBEAT]


def started(*ranks, expected=4):
    aligner = Aligner()
    fed(aligner, tick(100.0), *(start(rank, expected=expected) for rank in ranks))
    return aligner


def lockstep(ranks, beat, **more):
    return [step(rank, beat, **more) for rank in ranks]


def test_the_ranks_of_another_node_are_waited_for_while_its_agent_looks_for_ours():
    aligner = started(0, 1)

    assert fed(aligner, *lockstep((0, 1), 1), *lockstep((0, 1), 2), tick(125.0)) == []
    fed(aligner, start(2), start(3))
    closed = fed(aligner, *lockstep((2, 3), 1), *lockstep((2, 3), 2), tick(126.0))
    assert [(r.step_index, r.spread["loss"].count) for r in closed] == [(1, 4), (2, 4)]


def test_ranks_that_are_away_are_waited_for_until_they_are_lost():
    aligner = started(0, 1, 2, 3)
    fed(aligner, *lockstep(range(4), 1), tick(101.0), *lockstep((0, 1), 2), *lockstep((0, 1), 3))

    for time in (105.0, 112.0, 119.0):
        assert fed(aligner, tick(time, away="2,3")) == []
    (closed,) = fed(aligner, *lockstep((2, 3), 2), tick(120.0))
    assert (closed.step_index, closed.spread["loss"].count) == (2, 4)
    (closed,) = fed(aligner, tick(124.0, lost="2,3"))
    assert (closed.step_index, closed.spread["loss"].count) == (3, 2)


def test_a_node_without_sentinel_is_given_up_in_the_end():
    aligner = started(0, 1)
    fed(aligner, *lockstep((0, 1), 1), *lockstep((0, 1), 2))

    assert fed(aligner, tick(100.0 + NODE_JOIN_SECONDS - 1.0)) == []
    closed = fed(aligner, tick(100.0 + NODE_JOIN_SECONDS))
    assert [r.step_index for r in closed] == [1, 2]
    (third,) = fed(aligner, *lockstep((0, 1), 3), tick(131.0))
    assert "missing" not in third.attributes


def test_on_one_node_nothing_is_waited_for_longer_than_before():
    aligner = Aligner()
    fed(aligner, tick(100.0), start(0, expected=2))

    assert [r.step_index for r in fed(aligner, step(0, 1), tick(111.0))] == [1]


def test_steps_close_without_a_lost_node_at_once_and_name_its_ranks():
    aligner = started(0, 1, 2, 3)
    fed(aligner, *lockstep((0, 1, 2, 3), 1), *lockstep((0, 1), 2), tick(101.0))

    (second,) = fed(aligner, tick(101.4), *lockstep((0, 1), 3), tick(101.6, lost="2,3"))
    assert (second.step_index, second.attributes["missing"]) == (2, "2,3")
    (third,) = fed(aligner, *lockstep((0, 1), 4))
    assert (third.step_index, third.attributes["missing"]) == (3, "2,3")


def test_a_node_that_is_lost_before_its_ranks_began_is_not_waited_for():
    aligner = started(0, 1)
    fed(aligner, *lockstep((0, 1), 1), *lockstep((0, 1), 2))

    (first,) = fed(aligner, tick(103.0, lost="2,3"))[:1]
    assert (first.step_index, first.attributes["missing"]) == (1, "2,3")


def test_ranks_that_speak_again_are_waited_for_again():
    aligner = started(0, 1, 2, 3)
    fed(aligner, *lockstep((0, 1, 2, 3), 1), *lockstep((0, 1), 2), tick(110.0, lost="2,3"))
    fed(aligner, *lockstep((0, 1), 3), tick(112.0, lost="2,3"))

    # What was kept back meanwhile comes first, and is late where all of it was told.
    fed(aligner, *lockstep((2, 3), 2), *lockstep((2, 3), 3), tick(112.5))
    assert aligner.counters.values[DROPPED, "late"] == 4
    assert fed(aligner, *lockstep((0, 1), 4), *lockstep((0, 1), 5), tick(113.5)) == []
    (fourth,) = fed(aligner, *lockstep((2, 3), 4), *lockstep((2, 3), 5))
    assert (fourth.spread["loss"].count, dict(fourth.attributes)) == (4, {})


@pytest.mark.parametrize("outcome", ["finished", *FAILED_OUTCOMES, "died"])
@pytest.mark.parametrize("first", ["lost", "ended"])
def test_the_run_is_over_when_those_that_are_not_lost_have_ended(first, outcome):
    aligner = started(0, 1, 2, 3)
    fed(aligner, *lockstep((0, 1, 2, 3), 1))
    ends, lost = [stop(0, outcome), stop(1)], [tick(112.0, lost="2,3")]

    told = fed(aligner, *(lost + ends if first == "lost" else ends + lost))
    assert [r.event for r in told if r.event is Event.STOP] == [Event.STOP]
    assert told[-1].attributes["outcome"] == outcome
    assert fed(aligner, tick(113.0, lost="2,3"), tick(114.0, lost="2,3")) == []


def test_the_loss_of_a_node_whose_ranks_had_all_ended_ends_nothing():
    aligner = started(0, 1, 2, 3)
    fed(aligner, *lockstep((0, 1, 2, 3), 1), stop(2), stop(3))

    assert [r.event for r in fed(aligner, tick(112.0, lost="2,3"))] == [Event.STEP]


def test_a_run_that_shrinks_and_grows_again_forgets_who_was_lost():
    aligner = started(0, 1, 2, 3)
    fed(aligner, *lockstep((0, 1, 2, 3), 1), tick(112.0, lost="2,3"))

    two = [start(rank, expected=2, attempt=1) for rank in (0, 1)]
    fed(aligner, *two, tick(113.0, lost="2,3"))
    closed = fed(aligner, *(step(r, b, attempt=1) for b in (1, 2) for r in (0, 1)))
    assert [(r.attempt, r.step_index, dict(r.attributes)) for r in closed] == [(1, 1, {})]

    fed(aligner, *(start(rank, attempt=2) for rank in (0, 1)), tick(114.0, attempt=2))
    assert fed(aligner, *(step(r, b, attempt=2) for b in (1, 2) for r in (0, 1))) == []
    fed(aligner, start(2, attempt=2), start(3, attempt=2))
    closed = fed(aligner, *(step(r, b, attempt=2) for r in (2, 3) for b in (1, 2)))
    assert [(r.step_index, r.spread["loss"].count) for r in closed] == [(1, 4)]


def test_what_an_old_attempt_still_says_is_dropped_and_counted():
    aligner = started(0, 1, 2, 3)
    fed(aligner, start(0, attempt=1), *lockstep((2, 3), 1))

    assert aligner.counters.values[DROPPED, "old_attempt"] == 2


@st.composite
def told_in_any_order(draw):
    """Steps of eight ranks on four nodes, each rank's own in order, and ticks between them."""
    own = {rank: [step(rank, beat, loss=float(rank)) for beat in range(6, 0, -1)] for rank in RANKS}
    turns = draw(st.permutations([rank for rank in RANKS for _ in range(6)] + [-1] * 12))
    time, out = 101.0, []
    for turn in turns:
        if turn >= 0:
            out.append(own[turn].pop())
        else:
            time += draw(st.floats(0.1, 0.4))
            out.append(tick(time))
    return out, time


RANKS = range(8)


@given(told_in_any_order())
def test_every_step_is_told_once_in_order_and_whole_however_nodes_are_heard(story):
    records, time = story
    aligner = started(*RANKS, expected=8)
    closed = fed(aligner, *records, tick(time + 1.0))

    assert [r.step_index for r in closed] == [1, 2, 3, 4, 5, 6]
    assert [r.spread["loss"].count for r in closed] == [8] * 6
    assert {r.values["loss"] for r in closed} == {3.5}


class Counting(Aligner):
    """Counts how often a rank is looked at."""

    looks = 0

    def _is_awaited(self, rank, step_index):
        type(self).looks += 1
        return super()._is_awaited(rank, step_index)


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "backwards"])
def test_the_work_of_a_step_does_not_grow_with_the_square_of_the_ranks(order):
    aligner, many, steps = Counting(), 256, 20
    begun = [start(rank, expected=many, local=8) for rank in range(many)]
    fed(aligner, tick(100.0), *begun)
    Counting.looks = 0
    for beat in range(1, steps + 1):
        fed(aligner, *lockstep(range(many)[::order], beat), tick(100.0 + beat))

    assert aligner.closed_steps.last_key == (steps, 0)
    assert Counting.looks < 20 * many * steps


def test_a_time_that_a_tick_of_another_attempt_tells_still_counts():
    aligner = started(0, 1, 2, 3)
    fed(aligner, *lockstep((0, 1, 2, 3), 1))

    (first,) = fed(aligner, replace(tick(120.0), attempt=5))
    assert first.step_index == 1


def test_a_run_ends_once_however_late_another_node_is_heard():
    """Its head's TICK says when nobody is waited for any more; time alone does not."""
    aligner = started(0, 1)

    early = fed(aligner, *(stop(rank) for rank in (0, 1)), tick(100.0 + 2 * NODE_JOIN_SECONDS))
    late = fed(aligner, *map(start, (2, 3)), *map(stop, (2, 3)), tick(200.0, state="finished"))

    assert not [made for made in early if made.event is Event.STOP]
    assert [made.attributes["ranks"] for made in late if made.event is Event.STOP] == ["0,1,2,3"]
