"""Tests of the cause bad_batch."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.diagnoses import diagnose, diagnose_run, make_context
from support.tiny_trainings import GOOD_LEARNING_RATE, Training

from sentinel.causes.bad_batch import BadBatch
from sentinel.model.notification import NotificationReason

METADATA = {"framework": "lightning", "learning_rate": GOOD_LEARNING_RATE}
CAUSE = {"it": BadBatch()}


@pytest.mark.parametrize("seed", range(2))
def test_batches_that_raise_the_loss_once_are_diagnosed(seed):
    replay = diagnose_run(Training(bad=range(200, 203), seed=seed, count=260).records(), METADATA)

    assert replay.causes == ["bad_batch"]
    assert [notification.reason for notification in replay.notifications] == [
        NotificationReason.OPENED,
        NotificationReason.RESOLVED,
    ]
    (case,) = replay.cases.values()
    assert "of step 200" in case.diagnosis.remedy
    assert "`gradient_clip_val`" in case.diagnosis.remedy


def test_a_single_batch_that_raises_loss_and_gradient_a_hundredfold_is_diagnosed():
    replay = diagnose_run(Training(bad=range(200, 201), count=260).records(), METADATA)

    assert replay.causes == ["bad_batch"]


def test_a_learning_rate_that_is_too_high_is_another_cause():
    run = Training(
        rate=lambda step: GOOD_LEARNING_RATE if step < 200 else 100 * GOOD_LEARNING_RATE, count=240
    )

    assert diagnose_run(run.records(), {"learning_rate": 100 * GOOD_LEARNING_RATE}).causes[0] == (
        "learning_rate_too_high"
    )


def test_a_jump_at_a_rate_far_above_the_usual_has_another_cause():
    back = [(step, 50.0 if 90 <= step < 97 else 1.0) for step in range(80, 105)]
    usual = make_context(loss_spike=90, grad_explosion=91)
    fast = make_context(loss_spike=90, grad_explosion=91, learning_rate_high=1)

    assert diagnose(replace(usual, history={"grad_norm": back}), CAUSE) is not None
    assert diagnose(replace(fast, history={"grad_norm": back}), CAUSE) is None


def test_jumps_at_different_steps_or_repeated_jumps_have_another_cause():
    together, apart = (
        make_context(loss_spike=90, grad_explosion=91),
        make_context(loss_spike=90, grad_explosion=99),
    )
    again = replace(together.symptoms["loss_spike"], occurrences=2)
    back = [(step, 50.0 if 90 <= step < 97 else 1.0) for step in range(80, 105)]
    together, apart = (replace(each, history={"grad_norm": back}) for each in (together, apart))

    assert diagnose(together, CAUSE) is not None
    assert diagnose(replace(together, history={"grad_norm": back[:17]}), CAUSE) is None
    assert diagnose(apart, CAUSE) is None
    assert (
        diagnose(replace(together, symptoms={**together.symptoms, "loss_spike": again}), CAUSE)
        is None
    )


def test_a_norm_that_jumped_once_is_diagnosed_when_it_is_back_and_the_policy_is_unchanged():
    back = [(step, 50.0 if step == 90 else 1.0) for step in range(80, 105)]
    context = replace(make_context(grad_explosion=90), history={"grad_norm": back})
    fall = make_context(reward_collapse=92).symptoms

    assert diagnose(context, CAUSE) is not None
    assert diagnose(replace(context, history={"grad_norm": back[:12]}), CAUSE) is None
    assert diagnose(replace(context, symptoms={**context.symptoms, **fall}), CAUSE) is None
