"""Trials of the length detectors on logs of 40 to 100 lines, through the engine."""

from __future__ import annotations

import pytest
from support.coarse_policy_logs import completion_log

from sentinel.config.plugins import load_classes
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.pipeline.engine import Engine
from sentinel.testing import steps

SEEDS = range(6)
LENGTH_DETECTORS = ("length_collapse", "length_explosion", "truncation")
ENDLESS = 12.0
"""Factor of the usual length at which no completion ends before the limit."""


def warnings(series):
    """(point, detector, summary) of the first warning of each incident, in order."""
    detectors = load_classes("detectors")
    engine = Engine({name: detectors[name] for name in LENGTH_DETECTORS})
    return [
        (record.step - 1, note.incident.key.detector, note.incident.finding.summary)
        for record in steps(**series)
        for note in engine.process(record).notifications
        if note.reason is NotificationReason.OPENED and note.incident.severity is not Severity.INFO
    ]


def without(series, *names):
    return {name: values for name, values in series.items() if name not in names}


@pytest.mark.parametrize("seed", SEEDS)
def test_completions_that_all_reach_a_low_limit_are_a_warning_within_six_lines(seed):
    """The limit is 1.8 times the usual length, so a factor of 2 cannot be reached."""
    series = completion_log(seed, [1.0] * 30 + [ENDLESS] * 10, limit=540)

    assert 30 <= warnings(series)[0][0] <= 35


@pytest.mark.parametrize("seed", SEEDS)
def test_a_low_limit_is_recognized_by_the_longest_completion(seed):
    series = completion_log(seed, [1.0] * 30 + [ENDLESS] * 10, limit=540)
    found = warnings(without(series, "truncated_fraction"))

    assert found[0][1] == "length_explosion"
    assert 30 <= found[0][0] <= 36


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("line", [8, 14])
def test_an_early_explosion_needs_no_window_of_history(seed, line):
    series = completion_log(seed, [1.0] * line + [ENDLESS] * (40 - line), limit=1200)

    assert line <= warnings(series)[0][0] <= line + 6


@pytest.mark.parametrize("seed", SEEDS)
def test_a_collapse_at_the_third_line_is_a_warning_and_its_recovery_is_not(seed):
    skill = [0.85] * 3 + [0.2] * 3 + [0.8] * 34
    series = completion_log(seed, [0.8, 0.8, 0.6, 0.01, 0.01, 0.01] + [1.1] * 34, skill=skill)
    found = warnings(series)

    assert [(detector, point) for point, detector, _ in found] == [("length_collapse", 5)]
    assert "tokens" in found[0][2]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize(("before", "collapsed", "after"), [(20, 8, 40), (100, 90, 100)])
def test_the_recovery_from_a_collapse_is_no_explosion(seed, before, collapsed, after):
    growth = [1.0] * before + [0.02] * collapsed + [1.0] * after
    found = warnings(
        completion_log(seed, growth, skill=[0.8] * before + [0.1] * collapsed + [0.8] * after)
    )

    assert [detector for _, detector, _ in found] == ["length_collapse"]


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("lines", [40, 200])
def test_longer_reasoning_that_earns_more_is_no_warning(seed, lines):
    growth = [4.0 ** (line / lines) for line in range(lines)]
    skill = [0.2 + 0.6 * line / lines for line in range(lines)]

    assert not warnings(completion_log(seed, growth, limit=2400, skill=skill))


@pytest.mark.parametrize("seed", SEEDS)
@pytest.mark.parametrize("limit", [400, 540, 1200])
def test_steady_completions_are_no_warning_whatever_the_limit(seed, limit):
    assert not warnings(completion_log(seed, [1.0] * 60, limit=limit, skill=0.5))


@pytest.mark.parametrize("seed", SEEDS)
def test_short_answers_that_earn_more_are_no_warning(seed):
    skill = [0.1] * 3 + [0.9] * 37

    assert not warnings(completion_log(seed, [1.0] * 3 + [0.02] * 37, skill=skill))
