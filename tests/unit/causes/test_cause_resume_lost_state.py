"""Tests of the cause resume_lost_state."""

from __future__ import annotations

from dataclasses import replace
from itertools import chain

import pytest
from support.diagnoses import decaying_loss, diagnose, diagnose_run, make_context
from support.tiny_trainings import GOOD_LEARNING_RATE, Training

from sentinel.causes.resume_lost_state import ResumeLostState
from sentinel.model.diagnosis import RESUMED_STEP_KEY, SignalRange
from sentinel.model.record import Event
from sentinel.testing import event, steps

METADATA = {"framework": "transformers"}
CAUSE = {"it": ResumeLostState()}


def test_a_schedule_that_restarts_is_diagnosed():
    run = Training(
        resumed=200,
        count=240,
        rate=lambda step: GOOD_LEARNING_RATE * (1 - (step - 200 * (step >= 200)) / 250),
    )
    replay = diagnose_run(run.records(), METADATA)

    assert replay.causes == ["resume_lost_state"]
    (case,) = replay.cases.values()
    assert "was resumed at step 200" in " ".join(item.text for item in case.diagnosis.evidence)
    assert "`resume_from_checkpoint`" in case.diagnosis.remedy


def resumed(seed, *between):
    """A loss that is twice as high from step 201 on, with the records `between` before it."""
    losses = decaying_loss(seed, 400)
    before, after = losses[:200].tolist(), (2.0 * losses[200:]).tolist()
    return chain(steps(loss=before), between, steps(first=201, loss=after))


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_twice_as_high_after_a_restart_is_diagnosed(seed):
    assert diagnose_run(resumed(seed, event(Event.START, 0)), METADATA).causes == [
        "resume_lost_state"
    ]


@pytest.mark.parametrize("seed", range(5))
def test_the_same_without_a_restart_has_no_cause(seed):
    assert diagnose_run(resumed(seed), METADATA).causes == [""]


def test_an_incident_long_after_a_restart_has_another_cause():
    assert diagnose(make_context({RESUMED_STEP_KEY: 200}, loss_divergence=201), CAUSE) is not None
    assert diagnose(make_context({RESUMED_STEP_KEY: 200}, loss_divergence=400), CAUSE) is None


def test_a_restart_from_the_first_step_has_another_cause():
    def diagnosis(**metadata):
        return diagnose(make_context(metadata, grad_explosion=12, loss_spike=12), CAUSE)

    assert diagnosis(**{RESUMED_STEP_KEY: 10}) is not None
    assert diagnosis(**{RESUMED_STEP_KEY: 1}) is None
    assert diagnosis(**{RESUMED_STEP_KEY: 10}, logging_steps=10) is None


def test_a_healthy_restart_has_no_case():
    assert (
        diagnose_run(chain(Training(count=100).records(), [event(Event.START, 0)]), METADATA).causes
        == []
    )


def test_several_runs_in_one_log_contradict_it():
    """Their steps begin where the first ones did, or go back more than once."""
    context = make_context({}, loss_divergence=102, step_regression=100)
    once, again = SignalRange(1, 300, 0, 0.5, 3.0), SignalRange(100, 300, 0, 0.5, 3.0)
    cause = {"it": ResumeLostState()}

    assert diagnose(replace(context, ranges={"loss": once}), cause)
    assert not diagnose(replace(context, ranges={"loss": again}), cause)
    twice = replace(context.symptoms["step_regression"], occurrences=2)
    symptoms = {**context.symptoms, "step_regression": twice}
    assert not diagnose(replace(context, symptoms=symptoms), cause)
