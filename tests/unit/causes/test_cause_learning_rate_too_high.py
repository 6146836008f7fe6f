"""Tests of the cause learning_rate_too_high."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.diagnoses import diagnose_run, make_context
from support.tiny_trainings import GOOD_LEARNING_RATE, Training

from sentinel.causes.learning_rate_too_high import LearningRateTooHigh
from sentinel.pipeline.diagnose import diagnose

FAST = 100 * GOOD_LEARNING_RATE
FACTS = {"learning_rate": FAST, "warmup_steps": 0.0}


def named(seen):
    return diagnose(seen, {"it": LearningRateTooHigh()}) is not None


@pytest.mark.parametrize("seed", range(2))
def test_a_rate_that_is_raised_a_hundredfold_is_named(seed):
    run = Training(
        rate=lambda step: GOOD_LEARNING_RATE if step < 200 else FAST, count=250, seed=seed
    )
    replay = diagnose_run(run.records(), FACTS)

    assert replay.causes == ["learning_rate_too_high"]
    (case,) = replay.cases.values()
    assert "0.3" in case.diagnosis.evidence[-1].text
    assert 200 <= case.diagnosis.evidence[0].step <= 205


def test_a_warm_up_to_such_a_rate_is_named_as_well():
    run = Training(rate=lambda step: FAST * min(1.0, step / 300))

    assert diagnose_run(run.records(), FACTS).causes == ["learning_rate_too_high"]


def test_a_training_at_a_good_rate_has_no_case():
    assert diagnose_run(Training().records(), {"learning_rate": GOOD_LEARNING_RATE}).causes == []


def test_a_batch_that_is_got_over_is_none():
    run = Training(bad=range(200, 203), count=260).records()

    assert (
        "learning_rate_too_high"
        not in diagnose_run(run, {"learning_rate": GOOD_LEARNING_RATE}).causes
    )


def test_jumps_that_come_again_are_it_and_a_single_one_is_not():
    once = make_context(loss_spike=100, grad_explosion=100)
    again = replace(once.symptoms["loss_spike"], occurrences=3)

    assert not named(once)
    assert named(replace(once, symptoms={**once.symptoms, "loss_spike": again}))


@pytest.mark.parametrize(
    ("facts", "fast"),
    [
        ({"framework": "trl", "algorithm": "dpo", "learning_rate": 5e-5}, True),
        ({"framework": "trl", "algorithm": "dpo", "learning_rate": 5e-5, "peft": "0.18"}, False),
        ({"framework": "trl", "algorithm": "sft", "learning_rate": 5e-5}, False),
        ({"framework": "trl", "algorithm": "reward", "learning_rate": 5e-5}, False),
        ({"framework": "trl", "algorithm": "sft", "learning_rate": 5e-4}, True),
        ({"learning_rate": 3e-3}, False),
    ],
)
def test_what_is_fast_depends_on_the_training(facts, fast):
    assert named(make_context(facts, loss_divergence=500)) is fast
