"""Alignment over several nodes: ranks that start late, are lost, return, or restart."""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.aggregate.aligner import Aligner
from sentinel.aggregate.rank_membership import (
    MAX_LOST_WAIT_SECONDS,
    NODE_JOIN_SECONDS,
    RECONNECT_SECONDS,
)
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


def step(rank, step_index, *, attempt=0, **values):
    return Record(
        "run",
        rank,
        step_index,
        100.0 + step_index,
        values=values or {"loss": 1.0},
        attempt=attempt,
        step_index=step_index,
    )


def stop(rank, outcome="finished", *, attempt=0):
    attributes = {"outcome": outcome}
    return Record(
        "run", rank, 9, 200.0, Event.STOP, attributes=attributes, attempt=attempt, step_index=9
    )


def heartbeat(time, lost="", attempt=0, state="running", *, unreachable="", waiting_seconds=None):
    """`waiting_seconds` is how long all other ranks have waited for the lost ones, if they do."""
    attributes = {"lost_ranks": lost, "state": state, "unreachable_ranks": unreachable}
    values = {}
    if waiting_seconds is not None:
        attributes["blocked_by"] = "node_lost"
        values["lost_seconds"] = waiting_seconds
    return Record(
        "run",
        WHOLE_RUN,
        0,
        time,
        Event.HEARTBEAT,
        values=values,
        attributes=attributes,
        attempt=attempt,
    )


def process(aligner, *records):
    """The records of the run that these complete, without heartbeats."""
    out = [made for record in records for made in aligner.process(record)]
    return [r for r in out if r.rank == WHOLE_RUN and r.event is not Event.HEARTBEAT]


def started(*ranks, expected=4):
    aligner = Aligner()
    process(aligner, heartbeat(100.0), *(start(rank, expected=expected) for rank in ranks))
    return aligner


def lockstep(ranks, step_index, **more):
    return [step(rank, step_index, **more) for rank in ranks]


def test_ranks_of_another_node_are_awaited_while_its_agent_connects():
    aligner = started(0, 1)

    assert process(aligner, *lockstep((0, 1), 1), *lockstep((0, 1), 2), heartbeat(125.0)) == []
    process(aligner, start(2), start(3))
    closed = process(aligner, *lockstep((2, 3), 1), *lockstep((2, 3), 2), heartbeat(126.0))
    assert [(r.step_index, r.spread["loss"].count) for r in closed] == [(1, 4), (2, 4)]


def test_unreachable_ranks_are_awaited_until_they_are_lost():
    aligner = started(0, 1, 2, 3)
    process(
        aligner,
        *lockstep(range(4), 1),
        heartbeat(101.0),
        *lockstep((0, 1), 2),
        *lockstep((0, 1), 3),
    )

    for time in (105.0, 112.0, 119.0):
        assert process(aligner, heartbeat(time, unreachable="2,3")) == []
    (closed,) = process(aligner, *lockstep((2, 3), 2), heartbeat(120.0))
    assert (closed.step_index, closed.spread["loss"].count) == (2, 4)
    (closed,) = process(aligner, heartbeat(124.0, lost="2,3"))
    assert (closed.step_index, closed.spread["loss"].count) == (3, 2)


def test_a_node_without_sentinel_is_not_awaited_after_the_join_time():
    aligner = started(0, 1)
    process(aligner, *lockstep((0, 1), 1), *lockstep((0, 1), 2))

    assert process(aligner, heartbeat(100.0 + NODE_JOIN_SECONDS - 1.0)) == []
    closed = process(aligner, heartbeat(100.0 + NODE_JOIN_SECONDS))
    assert [r.step_index for r in closed] == [1, 2]
    (third,) = process(aligner, *lockstep((0, 1), 3), heartbeat(131.0))
    assert "missing" not in third.attributes


def test_on_a_single_node_there_is_no_join_time():
    aligner = Aligner()
    process(aligner, heartbeat(100.0), start(0, expected=2))

    assert [r.step_index for r in process(aligner, step(0, 1), heartbeat(111.0))] == [1]


def test_steps_close_at_once_when_a_node_is_lost_and_name_its_ranks():
    aligner = started(0, 1, 2, 3)
    process(aligner, *lockstep((0, 1, 2, 3), 1), *lockstep((0, 1), 2), heartbeat(101.0))

    (second,) = process(
        aligner, heartbeat(101.4), *lockstep((0, 1), 3), heartbeat(101.6, lost="2,3")
    )
    assert (second.step_index, second.attributes["missing"]) == (2, "2,3")
    (third,) = process(aligner, *lockstep((0, 1), 4))
    assert (third.step_index, third.attributes["missing"]) == (3, "2,3")


def test_steps_wait_for_a_lost_node_while_the_other_ranks_wait_for_it_too():
    """The link between two nodes was cut, and with it the collectives of the training."""
    aligner = started(0, 1, 2, 3)
    process(aligner, *lockstep((0, 1, 2, 3), 1), *lockstep((0, 1), 2), heartbeat(101.0))

    for seconds in (11.0, 20.0, 30.0):
        lost = heartbeat(101.0 + seconds, lost="2,3", waiting_seconds=seconds)
        assert process(aligner, *lockstep((0, 1), 3), lost) == []
    back = process(aligner, *lockstep((2, 3), 2), *lockstep((2, 3), 3), *lockstep(range(4), 4))
    back += process(aligner, *lockstep(range(4), 5), heartbeat(132.0))
    assert [(r.step_index, r.spread["loss"].count) for r in back[:3]] == [(2, 4), (3, 4), (4, 4)]
    assert (DROPPED, "late") not in aligner.counters.values


def after_a_cut():
    """The link is back, the ranks go on, and the agent of ranks 2 and 3 is not connected yet."""
    aligner = started(0, 1, 2, 3)
    process(aligner, *lockstep((0, 1, 2, 3), 1), *lockstep((0, 1), 2), heartbeat(101.0))
    process(aligner, heartbeat(121.0, lost="2,3", waiting_seconds=20.0))
    return aligner


def test_steps_wait_for_the_agent_of_a_lost_node_that_connects_again():
    aligner = after_a_cut()

    on = [*lockstep((0, 1), 3), *lockstep((0, 1), 4), heartbeat(123.0, lost="2,3")]
    assert process(aligner, *on) == []
    back = process(aligner, *lockstep((2, 3), 2), *lockstep((2, 3), 3), *lockstep((2, 3), 4))
    assert [(r.step_index, r.spread["loss"].count) for r in back] == [(2, 4), (3, 4)]


def test_steps_wait_a_short_time_once_the_other_ranks_go_on():
    aligner = after_a_cut()

    on = [*lockstep((0, 1), 3), heartbeat(121.0 + RECONNECT_SECONDS, lost="2,3")]
    assert process(aligner, *on)[0].attributes["missing"] == "2,3"


def test_steps_wait_a_limited_time_for_a_lost_node():
    aligner = started(0, 1, 2, 3)
    process(aligner, *lockstep((0, 1, 2, 3), 1), *lockstep((0, 1), 2), heartbeat(101.0))
    lost = heartbeat(161.5, lost="2,3", waiting_seconds=MAX_LOST_WAIT_SECONDS)

    closed = process(aligner, *lockstep((0, 1), 3), lost)

    assert (closed[0].step_index, closed[0].attributes["missing"]) == (2, "2,3")


def test_a_node_that_is_lost_before_its_ranks_start_is_not_awaited():
    aligner = started(0, 1)
    process(aligner, *lockstep((0, 1), 1), *lockstep((0, 1), 2))

    (first,) = process(aligner, heartbeat(103.0, lost="2,3"))[:1]
    assert (first.step_index, first.attributes["missing"]) == (1, "2,3")


def test_ranks_that_return_are_awaited_again():
    aligner = started(0, 1, 2, 3)
    process(aligner, *lockstep((0, 1, 2, 3), 1), *lockstep((0, 1), 2), heartbeat(110.0, lost="2,3"))
    process(aligner, *lockstep((0, 1), 3), heartbeat(112.0, lost="2,3"))

    # Buffered records come first; they are late if their step was closed with all signals.
    process(aligner, *lockstep((2, 3), 2), *lockstep((2, 3), 3), heartbeat(112.5))
    assert aligner.counters.values[DROPPED, "late"] == 4
    assert process(aligner, *lockstep((0, 1), 4), *lockstep((0, 1), 5), heartbeat(113.5)) == []
    (fourth,) = process(aligner, *lockstep((2, 3), 4), *lockstep((2, 3), 5))
    assert (fourth.spread["loss"].count, dict(fourth.attributes)) == (4, {})


@pytest.mark.parametrize("outcome", ["finished", *FAILED_OUTCOMES, "died"])
@pytest.mark.parametrize("first", ["lost", "ended"])
def test_the_run_ends_when_all_ranks_that_are_not_lost_have_stopped(first, outcome):
    aligner = started(0, 1, 2, 3)
    process(aligner, *lockstep((0, 1, 2, 3), 1))
    ends, lost = [stop(0, outcome), stop(1)], [heartbeat(112.0, lost="2,3")]

    closed = process(aligner, *(lost + ends if first == "lost" else ends + lost))
    assert [r.event for r in closed if r.event is Event.STOP] == [Event.STOP]
    assert closed[-1].attributes["outcome"] == outcome
    assert process(aligner, heartbeat(113.0, lost="2,3"), heartbeat(114.0, lost="2,3")) == []


def test_the_loss_of_a_node_whose_ranks_had_stopped_does_not_end_the_run():
    aligner = started(0, 1, 2, 3)
    process(aligner, *lockstep((0, 1, 2, 3), 1), stop(2), stop(3))

    assert [r.event for r in process(aligner, heartbeat(112.0, lost="2,3"))] == [Event.STEP]


def test_a_new_attempt_forgets_lost_ranks():
    aligner = started(0, 1, 2, 3)
    process(aligner, *lockstep((0, 1, 2, 3), 1), heartbeat(112.0, lost="2,3"))

    two = [start(rank, expected=2, attempt=1) for rank in (0, 1)]
    process(aligner, *two, heartbeat(113.0, lost="2,3"))
    closed = process(aligner, *(step(r, b, attempt=1) for b in (1, 2) for r in (0, 1)))
    assert [(r.attempt, r.step_index, dict(r.attributes)) for r in closed] == [(1, 1, {})]

    process(aligner, *(start(rank, attempt=2) for rank in (0, 1)), heartbeat(114.0, attempt=2))
    assert process(aligner, *(step(r, b, attempt=2) for b in (1, 2) for r in (0, 1))) == []
    process(aligner, start(2, attempt=2), start(3, attempt=2))
    closed = process(aligner, *(step(r, b, attempt=2) for r in (2, 3) for b in (1, 2)))
    assert [(r.step_index, r.spread["loss"].count) for r in closed] == [(1, 4)]


def test_records_of_an_old_attempt_are_dropped_and_counted():
    aligner = started(0, 1, 2, 3)
    process(aligner, start(0, attempt=1), *lockstep((2, 3), 1))

    assert aligner.counters.values[DROPPED, "old_attempt"] == 2


@st.composite
def interleaved_records(draw):
    """Steps of eight ranks on four nodes, in order for each rank, with heartbeats between them."""
    own = {
        rank: [step(rank, step_index, loss=float(rank)) for step_index in range(6, 0, -1)]
        for rank in RANKS
    }
    order = draw(st.permutations([rank for rank in RANKS for _ in range(6)] + [-1] * 12))
    time, out = 101.0, []
    for rank in order:
        if rank >= 0:
            out.append(own[rank].pop())
        else:
            time += draw(st.floats(0.1, 0.4))
            out.append(heartbeat(time))
    return out, time


RANKS = range(8)


@given(interleaved_records())
def test_every_step_is_combined_once_in_order_with_all_ranks_in_any_interleaving(interleaved):
    records, time = interleaved
    aligner = started(*RANKS, expected=8)
    closed = process(aligner, *records, heartbeat(time + 1.0))

    assert [r.step_index for r in closed] == [1, 2, 3, 4, 5, 6]
    assert [r.spread["loss"].count for r in closed] == [8] * 6
    assert {r.values["loss"] for r in closed} == {3.5}


class CountingAligner(Aligner):
    """Counts how often a rank is checked."""

    checks = 0

    def _is_awaited(self, rank, step_index):
        type(self).checks += 1
        return super()._is_awaited(rank, step_index)


@pytest.mark.parametrize("order", [1, -1], ids=["in order", "backwards"])
def test_the_work_of_a_step_does_not_grow_with_the_square_of_the_ranks(order):
    aligner, many, steps = CountingAligner(), 256, 20
    starts = [start(rank, expected=many, local=8) for rank in range(many)]
    process(aligner, heartbeat(100.0), *starts)
    CountingAligner.checks = 0
    for step_index in range(1, steps + 1):
        process(aligner, *lockstep(range(many)[::order], step_index), heartbeat(100.0 + step_index))

    assert aligner.steps.closed.last_key == (steps, 0)
    assert CountingAligner.checks < 20 * many * steps


def test_the_time_of_a_heartbeat_of_another_attempt_counts():
    aligner = started(0, 1, 2, 3)
    process(aligner, *lockstep((0, 1, 2, 3), 1))

    (first,) = process(aligner, replace(heartbeat(120.0), attempt=5))
    assert first.step_index == 1


def test_a_run_ends_once_however_late_another_node_reports():
    """The head's heartbeat decides when no rank is awaited any more, not the time."""
    aligner = started(0, 1)

    early = process(
        aligner, *(stop(rank) for rank in (0, 1)), heartbeat(100.0 + 2 * NODE_JOIN_SECONDS)
    )
    late = process(
        aligner, *map(start, (2, 3)), *map(stop, (2, 3)), heartbeat(200.0, state="finished")
    )

    assert not [made for made in early if made.event is Event.STOP]
    assert [made.attributes["ranks"] for made in late if made.event is Event.STOP] == ["0,1,2,3"]
