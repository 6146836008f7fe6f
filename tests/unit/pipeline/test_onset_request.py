"""The values from which an onset is estimated, and incidents that need no estimate."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from support.results import make_incident

from sentinel.model.finding import Finding
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.onset_request import MIN_POINTS, WINDOW_POINTS, RecentSignals

INCIDENT = replace(make_incident(), onset_step=20)


def signals_of(values, event=Event.STEP):
    signals = RecentSignals({"kl_ref"})
    for step, value in enumerate(values):
        record = Record("run", WHOLE_RUN, step, 0.0, event, {"kl_ref": value, "loss": 2.0})
        signals.update(record)
    return signals


def test_recent_values_are_of_the_given_signals_and_bounded():
    signals = signals_of([1.0] * 1000)

    assert list(signals.points) == ["kl_ref"]
    assert len(signals.points["kl_ref"]) == WINDOW_POINTS


def test_a_request_has_the_finite_values_and_the_known_checkpoints():
    request = signals_of([1.0, nan, *[1.0] * 28]).request_onset(INCIDENT, [10, 15])

    assert request.suspected_step == 20
    assert [step for step, _ in request.points] == [0, *range(2, 30)]
    assert request.checkpoint_steps == (10, 15)


def test_a_run_that_continues_from_an_earlier_step_replaces_the_later_ones():
    signals = signals_of([1.0] * 30)
    signals.update(Record("run", WHOLE_RUN, 25, 0.0, values={"kl_ref": 3.0}))

    assert list(signals.points["kl_ref"])[-2:] == [(24, 1.0), (25, 3.0)]


@pytest.mark.parametrize(
    ("values", "changes"),
    [
        ([], {}),
        ([1.0] * (MIN_POINTS - 1), {}),
        ([1.0] * 22 + [nan], {}),
        ([1.0] * 20 + [inf] * 5, {}),
        ([1.0] * 30, {"finding": Finding("Ranks differ.", signal="kl_ref")}),
    ],
    ids=["no values", "few values", "not a number", "infinite", "a signal of its own"],
)
def test_there_is_no_request_if_the_detector_knows_better(values, changes):
    assert signals_of(values).request_onset(replace(INCIDENT, **changes), []) is None


def test_the_values_of_heartbeats_belong_to_no_step():
    assert not signals_of([1.0] * 30, Event.HEARTBEAT).points
