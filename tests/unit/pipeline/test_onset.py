"""Onset: where a signal began to go wrong, or nothing where that cannot be told."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from support.results import make_incident

from sentinel.model.incident import Onset
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.onset import (
    WINDOW_POINTS,
    RecentSignals,
    estimate_incident_onset,
    estimate_onset,
)

WELL = 120
"""Points before anything is wrong."""


def series(seed, after, shape):
    rng = np.random.default_rng(seed)
    noise = rng.normal(0.0, 1.0, WELL + after)
    values = np.r_[np.zeros(WELL), shape(np.arange(1, after + 1))] + noise
    return [(10 * at, float(value)) for at, value in enumerate(values)]


def cliff(past):
    return np.full(len(past), 5.0)


def ramp(past):
    return 0.3 * past


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("shape", "after", "off"), [(cliff, 6, 10), (cliff, 40, 10), (ramp, 40, 150)]
)
def test_it_began_within_the_interval_and_near_the_step(seed, shape, after, off):
    found = estimate_onset(series(seed, after, shape), 10 * (WELL + 3))

    assert abs(found.step - 10 * WELL) <= off
    assert found.earliest - 10 <= 10 * WELL <= found.latest + 10
    assert found.earliest <= found.step <= found.latest


def test_growth_over_magnitudes_is_dated_by_its_logarithm():
    rng = np.random.default_rng(3)
    grown = np.r_[np.zeros(WELL), 0.1 * np.arange(1, 41)] + rng.normal(0.0, 0.2, WELL + 40)
    found = estimate_onset(
        [(at, float(np.exp(value))) for at, value in enumerate(grown)], WELL + 10
    )

    assert abs(found.step - WELL) <= 12


def test_a_trend_is_no_onset_and_a_break_of_it_is():
    rng = np.random.default_rng(1)
    falling = [2.0 - 0.01 * at + float(rng.normal(0.0, 0.05)) for at in range(WELL)]
    risen = [value + 0.6 for value in falling[-20:]]

    assert estimate_onset(list(enumerate(falling)), WELL - 5) is None
    assert estimate_onset(list(enumerate(falling + risen)), WELL + 2).step == WELL


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([], id="nothing is known"),
        pytest.param([(1, 1.0), (2, 9.0)], id="too little"),
        pytest.param([(at, 1.0) for at in range(100)], id="constant"),
        pytest.param(series(1, 0, cliff), id="noise"),
        pytest.param([*series(1, 0, cliff), (1200, float("nan"))], id="not a number"),
        pytest.param([(at, float("inf")) for at in range(100)], id="infinite"),
    ],
)
def test_where_it_cannot_be_told_nothing_is(points):
    assert estimate_onset(points, 1200) is None


def test_one_value_that_is_no_number_long_before_does_not_matter():
    points = series(2, 20, cliff)
    points[50] = (500, float("nan"))

    assert estimate_onset(points, 10 * (WELL + 3)).step == 10 * WELL


def test_the_last_good_checkpoint_is_older_than_all_of_the_interval():
    points = series(1, 20, cliff)
    found = estimate_incident_onset(make_incident(), points, [100, 1100, 1190, 1200])

    assert found.earliest <= 1200
    assert found.last_good_step == max(s for s in (100, 1100, 1190) if s < found.earliest)


def test_the_past_is_that_of_the_signal_and_bounded():
    past = RecentSignals({"kl_ref"})
    for step in range(1000):
        past.update(Record("run", WHOLE_RUN, step, 0.0, values={"kl_ref": 1.0, "loss": 2.0}))
    past.update(Record("run", WHOLE_RUN, 999, 0.0, Event.SAVE))

    assert list(past.points) == ["kl_ref"]
    assert len(past.points["kl_ref"]) == WINDOW_POINTS
    assert list(past.checkpoint_steps) == [999]


def test_the_same_past_gives_the_same_onset():
    points = series(4, 20, ramp)

    assert estimate_onset(points, 1230) == estimate_onset(points, 1230)
    assert isinstance(estimate_onset(points, 1230), Onset)


def test_ruptures_is_loaded_by_the_first_incident_only():
    ask = (
        "import sys, sentinel.pipeline.onset, sentinel.agent.main; print('ruptures' in sys.modules)"
    )
    told = subprocess.run([sys.executable, "-c", ask], capture_output=True, text=True, check=True)

    assert told.stdout == "False\n"
