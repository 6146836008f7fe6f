"""Selection of the ranks that are shown singly."""

from __future__ import annotations

from itertools import pairwise
from math import nan

import pytest
from support.results import incident_result, make_incident

from sentinel.metrics.rank_selection import (
    MAX_OUTLIER_RANKS,
    MAX_RANKS,
    MAX_WEIGHTED_RANKS,
    SHOW_AT_WEIGHT,
    WEIGHT_DECAY_STEPS,
    RankSelection,
)
from sentinel.metrics.run_state import RunState
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, RankMismatch, Record, Spread

MANY = 1024


def record(rank, step=1, event=Event.STEP, **fields):
    return Record("run", rank, step, 100.0 + step, event, **fields)


def selection(count=MANY, limit=64):
    ranks = RankSelection(limit)
    for rank in range(count):
        ranks.update(record(rank))
    return ranks


def spread(slowest=None, bad=(), mismatch=None):
    high = 1.0 if slowest is None else 2.0
    return Spread(MANY, 1.0, 1.0, high, MANY, 0.0, 0, slowest or 0, bad, mismatch)


def update_weights(ranks, times=1, attributes=None, **spreads):
    for _ in range(times):
        ranks.update_weights(
            Record("run", WHOLE_RUN, 1, 1.0, spread=spreads, attributes=attributes or {})
        )


def shown_outliers(ranks, required=()):
    return [rank for rank in ranks.select(required) if rank >= ranks.max_shown]


def test_all_ranks_up_to_the_limit_are_shown_in_order():
    ranks = RankSelection(4)
    for rank in (900, 3, 77, 12):
        ranks.update(record(rank))

    assert list(ranks.select()) == [3, 12, 77, 900]


def test_beyond_the_limit_the_lowest_ranks_are_shown_in_any_order_of_arrival():
    ranks = RankSelection(4)
    for rank in (9, 5, 3, 8, 1, 0, 7):
        ranks.update(record(rank))
        ranks.select()

    assert list(ranks.select()) == [0, 1, 3, 5]


def test_a_failed_rank_is_shown_until_it_restarts():
    ranks = selection()
    ranks.update(record(700, event=Event.STOP, attributes={"outcome": "died"}))
    ranks.update(record(800, event=Event.STOP, attributes={"outcome": "finished"}))
    assert shown_outliers(ranks) == [700]
    assert not ranks.select()[700].up

    ranks.update(record(700, event=Event.START))
    assert shown_outliers(ranks) == []


def test_the_rank_of_an_incident_is_shown_while_it_fires():
    run_state = RunState("run", 64)
    for rank in range(MANY):
        run_state.update(record(rank))
    incident = make_incident(rank=999)
    for notification in incident_result(of=incident).notifications:
        run_state.alerts.update_notification(notification)
    assert [*run_state.shown_ranks][64:] == [999]

    (resolved,) = incident_result(NotificationReason.RESOLVED, of=incident).notifications
    run_state.alerts.update_notification(resolved)
    assert len(run_state.shown_ranks) == 64


def test_the_rank_of_a_finding_on_the_whole_run_is_shown():
    run_state = RunState("run", 1)
    for rank in range(9):
        run_state.update(record(rank))
    incident = make_incident()
    incident.finding = type(incident.finding)("It is rank 7.", rank=7)
    run_state.alerts.update_incident(incident)

    assert [*run_state.shown_ranks] == [0, 7]


def test_a_rank_that_is_always_the_slowest_is_shown_after_some_steps():
    ranks = selection()
    update_weights(ranks, times=5, step_time=spread(slowest=500))
    assert shown_outliers(ranks) == []

    update_weights(ranks, times=30, step_time=spread(slowest=500))
    assert shown_outliers(ranks) == [500]


def test_ranks_that_are_the_slowest_by_chance_are_not_shown():
    ranks = selection()
    for step in range(5000):
        update_weights(ranks, step_time=spread(slowest=64 + step * 7919 % 900))
        assert shown_outliers(ranks) == []
    assert len(ranks.weights) <= MAX_WEIGHTED_RANKS


def test_a_rank_near_the_threshold_appears_only_once():
    """It is the slowest in about every fourth step."""
    ranks, seen = selection(), []
    for step in range(3000):
        update_weights(
            ranks, step_time=spread(slowest=500 if step % 4 == 0 else 64 + step * 7919 % 900)
        )
        seen.append(500 in shown_outliers(ranks))

    assert sum(a != b for a, b in pairwise(seen)) <= 1


@pytest.mark.parametrize(
    "marks",
    [
        {"loss": spread(bad=(500,))},
        {"grad_norm": spread(mismatch=RankMismatch(1.0, 1, ((500, 2.0),)))},
        {"attributes": {"missing": "500"}},
    ],
    ids=["not_finite", "mismatch", "missing"],
)
def test_a_marked_rank_is_shown_at_once_and_for_a_while(marks):
    ranks = selection()
    update_weights(ranks, **marks)
    assert shown_outliers(ranks) == [500]

    update_weights(ranks, times=WEIGHT_DECAY_STEPS, loss=spread())
    assert shown_outliers(ranks) == [500]

    update_weights(ranks, times=3 * WEIGHT_DECAY_STEPS, loss=spread())
    assert shown_outliers(ranks) == []


def test_equal_ranks_gain_no_weight():
    """The rank with the highest value is no slower than the others."""
    ranks = selection()
    update_weights(ranks, times=200, step_time=Spread(MANY, 1.0, 1.0, 1.0, MANY, 0.0, 64, 64))

    assert ranks.weights == {}


def test_outliers_are_bounded_and_ranks_of_incidents_come_first():
    ranks = selection()
    for rank in range(100, 200):
        ranks.update(record(rank, event=Event.STOP, attributes={"outcome": "died"}))
    update_weights(ranks, loss=spread(bad=tuple(range(300, 1000))))

    shown = shown_outliers(ranks, required=(1001, 1002))
    assert len(shown) == MAX_OUTLIER_RANKS
    assert {1001, 1002} < {*shown}
    assert len(ranks.outliers) <= MAX_OUTLIER_RANKS


def test_the_number_of_stored_ranks_is_bounded():
    ranks = RankSelection(4)
    for rank in range(MAX_RANKS + 10):
        ranks.update(record(rank))

    assert len(ranks.states) == MAX_RANKS


def test_an_unknown_required_rank_is_not_shown():
    assert shown_outliers(selection(), required=(5000,)) == []


def test_a_limit_of_zero_shows_no_rank():
    ranks = selection(limit=0)
    update_weights(ranks, loss=spread(bad=(500,)))

    assert ranks.select(required=(3,)) == {}
    assert ranks.copy().hidden_count == MANY


def test_a_copy_has_the_number_of_hidden_ranks_and_does_not_change():
    ranks = selection()
    copy = ranks.copy(required=(70,))
    ranks.update(record(0, step=9))

    assert (len(copy.select()), copy.hidden_count) == (65, MANY - 65)
    assert copy.select()[0].step == 1


def test_a_new_attempt_replaces_the_ranks_of_the_last_one():
    """An elastic restart: four ranks, then two, then four."""
    run_state = RunState("run", 64)

    def restarted(attempt, count):
        for rank in range(count):
            run_state.update(record(rank, event=Event.START, attempt=attempt))
        return [*run_state.shown_ranks]

    assert restarted(0, 4) == [0, 1, 2, 3]
    assert restarted(1, 2) == [0, 1]
    run_state.update(record(3, attempt=0))
    assert [*run_state.shown_ranks] == [0, 1]
    assert restarted(2, 4) == [0, 1, 2, 3]


def test_clear_removes_weights_and_failures():
    ranks = selection()
    update_weights(ranks, loss=spread(bad=(500,)))
    ranks.update(record(600, event=Event.STOP, attributes={"outcome": "died"}))
    ranks.clear()
    for rank in range(MANY):
        ranks.update(record(rank))

    assert shown_outliers(ranks) == []


def test_nan_step_times_give_no_weight():
    ranks = selection()
    nan_spread = Spread(0, nan, nan, nan, nan, nan, WHOLE_RUN, WHOLE_RUN)
    update_weights(ranks, times=100, step_time=nan_spread)

    assert ranks.weights == {}
    assert SHOW_AT_WEIGHT < WEIGHT_DECAY_STEPS
