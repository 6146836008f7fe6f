"""Tests of the cause data_changed."""

from dataclasses import replace
from math import exp

import pytest
from support.cause_trials import FINE_TUNING, clipped, harder_data, learning, other_task, unstable
from support.diagnoses import RUN, diagnose_run
from support.signal_faults import ONSET, make_records, make_rows

SEEDS = range(4)


def diagnosed(make, seed, metadata=None):
    records = make_records(make_rows(make, 3, seed))
    return diagnose_run([replace(each, run=RUN) for each in records], metadata)


def possible(replay):
    """The possible causes of all notifications."""
    return {each.cause for sent in replay.notifications for each in sent.possible_causes}


def test_a_loss_that_jumps_without_the_held_out_loss_is_of_other_data():
    causes = [diagnosed(other_task, seed).causes for seed in SEEDS]

    assert causes.count(["data_changed"]) >= 3


def test_without_held_out_data_it_is_possible_only():
    replays = [diagnosed(harder_data, seed) for seed in SEEDS]

    assert all(replay.causes == [""] for replay in replays)
    assert sum("data_changed" in possible(replay) for replay in replays) >= 3


@pytest.mark.parametrize("make", [clipped, unstable])
def test_a_gradient_that_rises_with_the_loss_is_another_cause(make):
    for seed in SEEDS:
        replay = diagnosed(make, seed, FINE_TUNING)
        assert "data_changed" not in possible(replay) | {*replay.causes}


def rate_jumps(log):
    """The loss rises because the rate does; the held-out loss is of an average of the weights."""
    row = other_task(log)
    return {**row, "learning_rate": 2e-5 * (1 + 9 * (log.step >= ONSET))}


def slow_rise(log):
    """The loss rises over the rest of the run."""
    row = learning(log)
    late = max(0, log.step - ONSET) / 100
    held_out = {"eval_loss": 1.2} if log.step % 10 == 0 else {}
    return {**row, "loss": row["loss"] * exp(late) if log.size else row["loss"], **held_out}


@pytest.mark.parametrize("make", [rate_jumps, slow_rise])
def test_a_rate_that_rises_or_a_slow_rise_is_no_change_of_data(make):
    for seed in SEEDS:
        assert "data_changed" not in diagnosed(make, seed).causes
