"""Tests of the cause resume_lost_state."""

from __future__ import annotations

from itertools import chain

import pytest
from support.diagnoses import decaying_loss, diagnose_run, make_context
from support.tiny_trainings import GOOD_LEARNING_RATE, Training

from sentinel.causes.resume_lost_state import ResumeLostState
from sentinel.model.diagnosis import RESUMED_STEP_KEY
from sentinel.model.record import Event
from sentinel.pipeline.diagnose import diagnose
from sentinel.testing import event, steps

FACTS = {"framework": "transformers"}
CAUSE = {"it": ResumeLostState()}


def test_a_schedule_that_begins_again_is_named():
    run = Training(
        resumed=200,
        count=240,
        rate=lambda step: GOOD_LEARNING_RATE * (1 - (step - 200 * (step >= 200)) / 250),
    )
    replay = diagnose_run(run.records(), FACTS)

    assert replay.causes == ["resume_lost_state"]
    (case,) = replay.cases.values()
    assert "was resumed at step 200" in " ".join(item.text for item in case.diagnosis.evidence)
    assert "`resume_from_checkpoint`" in case.diagnosis.remedy


def resumed(seed, *between):
    """A loss that is twice as high from the 201st step on, with that before it."""
    losses = decaying_loss(seed, 400)
    before, after = losses[:200].tolist(), (2.0 * losses[200:]).tolist()
    return chain(steps(loss=before), between, steps(first=201, loss=after))


@pytest.mark.parametrize("seed", range(5))
def test_a_loss_that_is_twice_as_high_after_a_restart_is_named(seed):
    assert diagnose_run(resumed(seed, event(Event.START, 0)), FACTS).causes == ["resume_lost_state"]


@pytest.mark.parametrize("seed", range(5))
def test_the_same_without_a_restart_is_none(seed):
    assert diagnose_run(resumed(seed), FACTS).causes == [""]


def test_what_goes_wrong_long_after_a_restart_is_none():
    assert diagnose(make_context({RESUMED_STEP_KEY: 200}, loss_divergence=201), CAUSE) is not None
    assert diagnose(make_context({RESUMED_STEP_KEY: 200}, loss_divergence=400), CAUSE) is None


def test_a_run_that_began_again_from_its_first_step_left_nothing_behind():
    def named(**facts):
        return diagnose(make_context(facts, grad_explosion=12, loss_spike=12), CAUSE)

    assert named(**{RESUMED_STEP_KEY: 10}) is not None
    assert named(**{RESUMED_STEP_KEY: 1}) is None
    assert named(**{RESUMED_STEP_KEY: 10}, logging_steps=10) is None


def test_a_healthy_restart_has_no_case():
    assert (
        diagnose_run(chain(Training(count=100).records(), [event(Event.START, 0)]), FACTS).causes
        == []
    )
