"""Ranks: of many a few are shown, always the same ones but for those that stand out."""

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


def said(rank, step=1, event=Event.STEP, **more):
    return Record("run", rank, step, 100.0 + step, event, **more)


def followed(count=MANY, limit=64):
    ranks = RankSelection(limit)
    for rank in range(count):
        ranks.update(said(rank))
    return ranks


def spread(slowest=None, bad=(), odd=None):
    high = 1.0 if slowest is None else 2.0
    return Spread(MANY, 1.0, 1.0, high, MANY, 0.0, 0, slowest or 0, bad, odd)


def told(ranks, times=1, facts=None, **spreads):
    for _ in range(times):
        ranks.update_weights(
            Record("run", WHOLE_RUN, 1, 1.0, spread=spreads, attributes=facts or {})
        )


def outliers(ranks, named=()):
    return [rank for rank in ranks.select(named) if rank >= ranks.max_shown]


def test_no_more_ranks_than_the_limit_are_all_shown_in_order():
    ranks = RankSelection(4)
    for rank in (900, 3, 77, 12):
        ranks.update(said(rank))

    assert list(ranks.select()) == [3, 12, 77, 900]


def test_of_more_the_lowest_are_shown_in_whatever_order_they_speak():
    ranks = RankSelection(4)
    for rank in (9, 5, 3, 8, 1, 0, 7):
        ranks.update(said(rank))
        ranks.select()

    assert list(ranks.select()) == [0, 1, 3, 5]


def test_a_rank_that_fell_is_shown_until_it_comes_back():
    ranks = followed()
    ranks.update(said(700, event=Event.STOP, attributes={"outcome": "died"}))
    ranks.update(said(800, event=Event.STOP, attributes={"outcome": "finished"}))
    assert outliers(ranks) == [700]
    assert not ranks.select()[700].up

    ranks.update(said(700, event=Event.START))
    assert outliers(ranks) == []


def test_a_rank_that_an_incident_names_is_shown_while_it_fires():
    standing = RunState("run", 64)
    for rank in range(MANY):
        standing.update(said(rank))
    for page in incident_result(of=(sick := make_incident(rank=999))).notifications:
        standing.update_notification(page)
    assert [*standing.shown_ranks][64:] == [999]

    standing.update_notification(
        incident_result(NotificationReason.RESOLVED, of=sick).notifications[0]
    )
    assert len(standing.shown_ranks) == 64


def test_the_culprit_of_a_finding_on_the_whole_run_is_shown_too():
    standing = RunState("run", 1)
    for rank in range(9):
        standing.update(said(rank))
    found = make_incident()
    found.finding = type(found.finding)("It is rank 7.", rank=7)
    standing.update_incident(found)

    assert [*standing.shown_ranks] == [0, 7]


def test_a_rank_that_is_always_the_slowest_is_shown_after_some_steps():
    ranks = followed()
    told(ranks, times=5, step_time=spread(slowest=500))
    assert outliers(ranks) == []

    told(ranks, times=30, step_time=spread(slowest=500))
    assert outliers(ranks) == [500]


def test_ranks_that_are_the_slowest_by_chance_are_not_shown():
    ranks = followed()
    for step in range(5000):
        told(ranks, step_time=spread(slowest=64 + step * 7919 % 900))
        assert outliers(ranks) == []
    assert len(ranks.weights) <= MAX_WEIGHTED_RANKS


def test_series_do_not_churn_for_a_rank_that_is_on_the_edge():
    """The slowest in every fourth step, more or less: it comes once, and stays."""
    ranks, seen = followed(), []
    for step in range(3000):
        told(ranks, step_time=spread(slowest=500 if step % 4 == 0 else 64 + step * 7919 % 900))
        seen.append(500 in outliers(ranks))

    assert sum(a != b for a, b in pairwise(seen)) <= 1


@pytest.mark.parametrize(
    "trouble",
    [
        {"loss": spread(bad=(500,))},
        {"grad_norm": spread(odd=RankMismatch(1.0, 1, ((500, 2.0),)))},
        {"facts": {"missing": "500"}},
    ],
    ids=["not finite", "odd", "late"],
)
def test_a_rank_in_trouble_is_shown_at_once_and_for_a_while(trouble):
    ranks = followed()
    told(ranks, **trouble)
    assert outliers(ranks) == [500]

    told(ranks, times=WEIGHT_DECAY_STEPS, loss=spread())
    assert outliers(ranks) == [500]

    told(ranks, times=3 * WEIGHT_DECAY_STEPS, loss=spread())
    assert outliers(ranks) == []


def test_a_step_without_an_outlier_singles_nobody_out():
    """All alike, the highest is the lowest rank: it is no slower than others."""
    ranks = followed()
    told(ranks, times=200, step_time=Spread(MANY, 1.0, 1.0, 1.0, MANY, 0.0, 64, 64))

    assert ranks.weights == {}


def test_outliers_are_bounded_and_those_of_incidents_come_first():
    ranks = followed()
    for rank in range(100, 200):
        ranks.update(said(rank, event=Event.STOP, attributes={"outcome": "died"}))
    told(ranks, loss=spread(bad=tuple(range(300, 1000))))

    shown = outliers(ranks, named=(1001, 1002))
    assert len(shown) == MAX_OUTLIER_RANKS
    assert {1001, 1002} < {*shown}
    assert len(ranks.outliers) <= MAX_OUTLIER_RANKS


def test_a_flood_of_ranks_is_bounded():
    ranks = RankSelection(4)
    for rank in range(MAX_RANKS + 10):
        ranks.update(said(rank))

    assert len(ranks.states) == MAX_RANKS


def test_a_named_rank_that_nobody_heard_of_is_not_made_up():
    assert outliers(followed(), named=(5000,)) == []


def test_a_limit_of_none_shows_none():
    ranks = followed(limit=0)
    told(ranks, loss=spread(bad=(500,)))

    assert ranks.select(named=(3,)) == {}
    assert ranks.copy().hidden_count == MANY


def test_a_copy_says_how_many_it_leaves_out_and_stays_as_it_was():
    ranks = followed()
    copy = ranks.copy(named=(70,))
    ranks.update(said(0, step=9))

    assert (len(copy.select()), copy.hidden_count) == (65, MANY - 65)
    assert copy.select()[0].step == 1


def test_ranks_of_another_attempt_begin_anew_and_those_of_the_last_are_heard_no_more():
    """An elastic restart: four ranks, then two, then four."""
    standing = RunState("run", 64)

    def restarted(attempt, count):
        for rank in range(count):
            standing.update(said(rank, event=Event.START, attempt=attempt))
        return [*standing.shown_ranks]

    assert restarted(0, 4) == [0, 1, 2, 3]
    assert restarted(1, 2) == [0, 1]
    standing.update(said(3, attempt=0))
    assert [*standing.shown_ranks] == [0, 1]
    assert restarted(2, 4) == [0, 1, 2, 3]


def test_what_made_a_rank_stand_out_is_forgotten_with_its_attempt():
    ranks = followed()
    told(ranks, loss=spread(bad=(500,)))
    ranks.update(said(600, event=Event.STOP, attributes={"outcome": "died"}))
    ranks.clear()
    for rank in range(MANY):
        ranks.update(said(rank))

    assert outliers(ranks) == []


def test_what_is_not_a_number_is_no_reason_to_be_slow():
    ranks = followed()
    none = Spread(0, nan, nan, nan, nan, nan, WHOLE_RUN, WHOLE_RUN)
    told(ranks, times=100, step_time=none)

    assert ranks.weights == {}
    assert SHOW_AT_WEIGHT < WEIGHT_DECAY_STEPS
