"""Tests of the cause learning_rate_too_high."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from support.diagnoses import diagnose_run, make_context
from support.tiny_trainings import GOOD_LEARNING_RATE, Training

from sentinel.causes.learning_rate_too_high import LearningRateTooHigh
from sentinel.pipeline.diagnose import diagnose
from sentinel.testing import steps

FAST = 100 * GOOD_LEARNING_RATE
METADATA = {"learning_rate": FAST, "warmup_steps": 0.0}


def is_diagnosed(context):
    return diagnose(context, {"it": LearningRateTooHigh()}) is not None


@pytest.mark.parametrize("seed", range(2))
def test_a_rate_raised_a_hundredfold_is_diagnosed(seed):
    run = Training(
        rate=lambda step: GOOD_LEARNING_RATE if step < 200 else FAST, count=250, seed=seed
    )
    replay = diagnose_run(run.records(), METADATA)

    assert replay.causes == ["learning_rate_too_high"]
    (case,) = replay.cases.values()
    assert "0.3" in case.diagnosis.evidence[-1].text
    assert 200 <= case.diagnosis.evidence[0].step <= 205


def test_a_warm_up_to_a_high_rate_is_diagnosed():
    run = Training(rate=lambda step: FAST * min(1.0, step / 300))

    assert diagnose_run(run.records(), METADATA).causes == ["learning_rate_too_high"]


def test_a_training_at_a_good_rate_has_no_case():
    assert diagnose_run(Training().records(), {"learning_rate": GOOD_LEARNING_RATE}).causes == []


def test_a_bad_batch_has_another_cause():
    run = Training(bad=range(200, 203), count=260).records()

    assert (
        "learning_rate_too_high"
        not in diagnose_run(run, {"learning_rate": GOOD_LEARNING_RATE}).causes
    )


def test_repeated_jumps_are_diagnosed_and_a_single_one_is_not():
    once = make_context(loss_spike=100, grad_explosion=100)
    again = replace(once.symptoms["loss_spike"], occurrences=3)

    assert not is_diagnosed(once)
    assert is_diagnosed(replace(once, symptoms={**once.symptoms, "loss_spike": again}))


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"framework": "trl", "algorithm": "dpo", "learning_rate": 5e-5}, True),
        ({"framework": "trl", "algorithm": "dpo", "learning_rate": 5e-5, "peft": "0.18"}, False),
        ({"framework": "trl", "algorithm": "sft", "learning_rate": 5e-5}, False),
        ({"framework": "trl", "algorithm": "reward", "learning_rate": 5e-5}, False),
        ({"framework": "trl", "algorithm": "sft", "learning_rate": 5e-4}, True),
        ({"learning_rate": 3e-3}, False),
    ],
)
def test_the_highest_usual_rate_depends_on_the_training(metadata, expected):
    assert is_diagnosed(make_context(metadata, loss_divergence=500)) is expected


@pytest.mark.parametrize("detector", ["loss_plateau", "loss_never_moved", "grad_vanishing"])
def test_a_rate_far_above_the_usual_explains_a_training_that_is_stuck(detector):
    metadata = {"framework": "trl", "algorithm": "sft", "peft_type": "LORA"}
    stuck = {detector: 100}

    assert is_diagnosed(make_context({**metadata, "learning_rate": 0.2}, **stuck))
    assert not is_diagnosed(make_context({**metadata, "learning_rate": 2e-3}, **stuck))
    assert not is_diagnosed(make_context({"learning_rate": 0.2}, **stuck))


def test_lora_at_a_thousand_times_the_usual_rate_is_diagnosed():
    """The loss stays at the level of token frequencies; no other detector needs to fire."""
    rng = np.random.default_rng(0)
    loss = (3.4 + 4.6 * 0.7 ** np.arange(300)) * rng.lognormal(0, 0.03, 300)
    metadata = {"framework": "trl", "algorithm": "sft", "peft_type": "LORA", "learning_rate": 0.2}
    replay = diagnose_run(steps(loss=loss.tolist()), metadata)

    assert replay.causes == ["learning_rate_too_high"]
