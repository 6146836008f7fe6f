"""Combine: what ranks said about one step becomes one record, and nothing averages a fault away."""

from __future__ import annotations

from math import inf, isnan, nan

import pytest

from sentinel.combine import Said, combine
from sentinel.record import WHOLE_RUN, Event, Record


def said(rank, /, *words, step=7, **values):
    """A rank that said `values`, then each further mapping of `words`."""
    records = [Record("run", rank, step, 100.0 + rank, values=each) for each in (values, *words)]
    told = Said(records[0])
    for record in records:
        told.add(record)
    return told


def combined(*tellers, missing=(), event=Event.STEP):
    return combine(event, dict(enumerate(tellers)), missing)


def test_means_are_weighted_by_what_each_rank_says_its_weight_is():
    record = combined(said(0, loss=1.0, weight=30.0), said(1, loss=2.0, weight=10.0))

    assert record.values == {"loss": 1.25}
    assert record.rank == WHOLE_RUN


def test_names_are_ours_whatever_a_framework_calls_them():
    record = combined(said(0, **{"train/kl": 0.1, "my metric": 3.0}))

    assert record.values == {"kl_ref": 0.1, "my metric": 3.0}
    assert record.facts == {"kl_ref": "train/kl"}


def test_each_signal_combines_by_its_own_rule():
    record = combined(
        said(0, grad_norm=1.0, learning_rate=0.1, step_time=0.5),
        said(1, grad_norm=3.0, learning_rate=0.1, step_time=0.4),
    )

    assert record.values == {"grad_norm": 3.0, "learning_rate": 0.1, "step_time": 0.5}


def test_the_spread_names_the_extreme_ranks():
    spread = combined(said(0, loss=2.0), said(1, loss=5.0), said(2, loss=2.0)).spread["loss"]

    assert (spread.min, spread.min_rank, spread.max, spread.max_rank) == (2.0, 0, 5.0, 1)
    assert (spread.count, spread.mean, spread.sum) == (3, 3.0, 9.0)
    assert spread.std == pytest.approx(2**0.5)


@pytest.mark.parametrize("bad", [nan, inf, -inf])
def test_one_rank_that_is_not_finite_is_named_and_not_averaged_away(bad):
    record = combined(said(0, loss=1.0), said(1, loss=bad), said(2, loss=3.0))

    assert isnan(record.values["loss"])
    assert record.spread["loss"].bad_ranks == (1,)
    assert record.spread["loss"].mean == 2.0


def test_a_signal_that_no_rank_has_finite_still_has_a_spread():
    spread = combined(said(0, loss=nan), said(1, loss=inf)).spread["loss"]

    assert (spread.count, spread.bad_ranks, spread.max_rank) == (0, (0, 1), WHOLE_RUN)


def test_several_words_of_one_rank_fold_by_the_signals_rule():
    record = combined(said(0, {"loss": 3.0}, {"learning_rate": 0.2}, loss=1.0, learning_rate=0.1))

    assert record.values == {"loss": 2.0, "learning_rate": 0.1}


def test_missing_ranks_are_named():
    record = combined(said(0, loss=1.0), missing=(2, 3))

    assert record.facts == {"missing": "2,3"}


def test_the_step_is_the_one_the_trainer_itself_gave():
    """A rank that only counts optimiser steps does not overrule one that was told the number."""
    record = combined(said(0, loss=1.0, step=10), said(1, loss=1.0, global_step=9.0, step=9))

    assert record.step == 9


def test_weights_that_say_nothing_are_ignored():
    record = combined(said(0, loss=1.0, weight=0.0), said(1, loss=3.0, weight=0.0))

    assert record.values == {"loss": 2.0}
