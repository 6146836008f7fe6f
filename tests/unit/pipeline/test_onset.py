"""Onset estimates on synthetic signals, and no estimate without a clear change."""

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

HEALTHY_POINTS = 120
"""Points before the change."""


def series(seed, after, shape):
    rng = np.random.default_rng(seed)
    noise = rng.normal(0.0, 1.0, HEALTHY_POINTS + after)
    values = np.r_[np.zeros(HEALTHY_POINTS), shape(np.arange(1, after + 1))] + noise
    return [(10 * n, float(value)) for n, value in enumerate(values)]


def jump(since_onset):
    return np.full(len(since_onset), 5.0)


def ramp(since_onset):
    return 0.3 * since_onset


@pytest.mark.parametrize("seed", range(5))
@pytest.mark.parametrize(
    ("shape", "after", "tolerance"), [(jump, 6, 10), (jump, 40, 10), (ramp, 40, 150)]
)
def test_the_onset_is_in_the_interval_and_near_the_estimate(seed, shape, after, tolerance):
    found = estimate_onset(series(seed, after, shape), 10 * (HEALTHY_POINTS + 3))

    assert abs(found.step - 10 * HEALTHY_POINTS) <= tolerance
    assert found.earliest - 10 <= 10 * HEALTHY_POINTS <= found.latest + 10
    assert found.earliest <= found.step <= found.latest


def test_exponential_growth_is_estimated_on_its_logarithm():
    rng = np.random.default_rng(3)
    grown = np.r_[np.zeros(HEALTHY_POINTS), 0.1 * np.arange(1, 41)] + rng.normal(
        0.0, 0.2, HEALTHY_POINTS + 40
    )
    found = estimate_onset(
        [(n, float(np.exp(value))) for n, value in enumerate(grown)], HEALTHY_POINTS + 10
    )

    assert abs(found.step - HEALTHY_POINTS) <= 12


def test_a_trend_has_no_onset_but_a_jump_in_it_has():
    rng = np.random.default_rng(1)
    falling = [2.0 - 0.01 * n + float(rng.normal(0.0, 0.05)) for n in range(HEALTHY_POINTS)]
    risen = [value + 0.6 for value in falling[-20:]]

    assert estimate_onset(list(enumerate(falling)), HEALTHY_POINTS - 5) is None
    assert (
        estimate_onset(list(enumerate(falling + risen)), HEALTHY_POINTS + 2).step == HEALTHY_POINTS
    )


@pytest.mark.parametrize(
    "points",
    [
        pytest.param([], id="no points"),
        pytest.param([(1, 1.0), (2, 9.0)], id="too few points"),
        pytest.param([(n, 1.0) for n in range(100)], id="constant"),
        pytest.param(series(1, 0, jump), id="noise"),
        pytest.param([*series(1, 0, jump), (1200, float("nan"))], id="not a number"),
        pytest.param([(n, float("inf")) for n in range(100)], id="infinite"),
    ],
)
def test_there_is_no_estimate_without_a_clear_change(points):
    assert estimate_onset(points, 1200) is None


def test_a_nan_long_before_the_onset_is_ignored():
    points = series(2, 20, jump)
    points[50] = (500, float("nan"))

    assert estimate_onset(points, 10 * (HEALTHY_POINTS + 3)).step == 10 * HEALTHY_POINTS


def test_the_last_good_checkpoint_is_before_the_interval():
    points = series(1, 20, jump)
    found = estimate_incident_onset(make_incident(), points, [100, 1100, 1190, 1200])

    assert found.earliest <= 1200
    assert found.last_good_step == max(s for s in (100, 1100, 1190) if s < found.earliest)


def test_recent_values_are_of_the_given_signals_and_bounded():
    signals = RecentSignals({"kl_ref"})
    for step in range(1000):
        signals.update(Record("run", WHOLE_RUN, step, 0.0, values={"kl_ref": 1.0, "loss": 2.0}))
    signals.update(Record("run", WHOLE_RUN, 999, 0.0, Event.SAVE))

    assert list(signals.points) == ["kl_ref"]
    assert len(signals.points["kl_ref"]) == WINDOW_POINTS
    assert list(signals.checkpoint_steps) == [999]


def test_the_estimate_is_deterministic():
    points = series(4, 20, ramp)

    assert estimate_onset(points, 1230) == estimate_onset(points, 1230)
    assert isinstance(estimate_onset(points, 1230), Onset)


def test_ruptures_is_imported_at_the_first_estimate_only():
    script = (
        "import sys, sentinel.pipeline.onset, sentinel.agent.main; print('ruptures' in sys.modules)"
    )
    done = subprocess.run(
        [sys.executable, "-c", script], capture_output=True, text=True, check=True
    )

    assert done.stdout == "False\n"
