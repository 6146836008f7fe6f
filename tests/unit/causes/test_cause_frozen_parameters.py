"""Tests of the cause frozen_parameters."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.diagnoses import diagnose, diagnose_run, make_context
from support.layer_trainings import make
from support.tiny_trainings import GOOD_LEARNING_RATE, Training

from sentinel.causes.frozen_parameters import FrozenParameters
from sentinel.model.diagnosis import CaseContext, SignalRange, Symptom
from sentinel.model.finding import Severity
from sentinel.testing import steps

METADATA = {"framework": "trl", "algorithm": "sft", "learning_rate": GOOD_LEARNING_RATE}


@pytest.mark.parametrize(
    ("training", "check"),
    [
        (Training(frozen=True, count=200), "requires_grad"),
        (Training(rate=lambda _: 0.0, count=200), "the scheduler is stepped"),
    ],
    ids=["no gradient", "no learning rate"],
)
def test_untrained_parameters_are_diagnosed(training, check):
    replay = diagnose_run(training.records(), METADATA)

    assert replay.causes == ["frozen_parameters"]
    assert len(replay.notifications) == 1
    assert replay.notifications[0].step <= 64
    (case,) = replay.cases.values()
    assert "loss_never_moved" in {each.key.detector for each in case.others}
    assert check in case.diagnosis.remedy


def test_an_untrained_policy_is_diagnosed_if_its_rewards_vary():
    count = 200
    run = steps(
        grad_norm=[0.0] * count,
        reward=[0.5 + 0.1 * ((7 * n) % 5) for n in range(count)],
        reward_std=[0.2] * count,
    )

    assert diagnose_run(run, {"framework": "trl", "algorithm": "grpo"}).causes == [
        "frozen_parameters"
    ]


def test_groups_with_equal_rewards_have_another_cause():
    context = make_context(grad_vanishing=1, reward_zero_variance=1, reward_stalled=1)

    assert diagnose(context, {"it": FrozenParameters()}) is None


def test_a_gradient_that_vanished_later_has_another_cause():
    symptom = Symptom(
        "grad_vanishing", Severity.WARNING, 500, 520, "It is 1e-9.", {"grad_norm_before": 0.8}
    )

    assert diagnose(CaseContext({"grad_vanishing": symptom}), {"it": FrozenParameters()}) is None


def test_data_that_cannot_be_learned_have_another_cause():
    replay = diagnose_run(Training(labels="random", count=200).records(), METADATA)

    assert replay.causes == ["data_not_learnable"]


@pytest.mark.parametrize(
    ("kind", "layer", "detector"),
    [
        ("dead layer", "4", "layer_gradient_dead"),
        ("detached block", "blocks.2.1", "layer_gradient_dead"),
        ("block with a rate of 0", "blocks.2.0", "layer_update_ratio"),
    ],
)
def test_layers_that_are_cut_off_are_diagnosed_and_named(kind, layer, detector):
    replay = diagnose_run(make(kind, 0).records(), {"learning_rate": 1e-3})

    assert replay.causes == ["frozen_parameters"]
    assert [each.step for each in replay.notifications] == [70]
    (case,) = replay.cases.values()
    assert case.incident.key.detector == detector
    assert f"`{layer}`" in case.diagnosis.evidence[0].text
    assert f"initial weights of `{layer}`" in case.diagnosis.remedy


def test_a_head_that_no_loss_uses_is_no_fault():
    unused = Symptom(
        "layer_gradient_dead", Severity.INFO, 1, 80, "It is 0.",
        {"layer": "head", "layer_gradient_norm_before": 0.0},
    )  # fmt: skip

    context = CaseContext({"layer_gradient_dead": unused})
    assert diagnose(context, {"it": FrozenParameters()}) is None


def test_gradients_that_vanish_with_depth_have_another_cause():
    replay = diagnose_run(make("ten sigmoids", 0).records(), {"learning_rate": 0.1})

    assert replay.causes == [""]
    assert replay.notifications[0].incident.key.detector == "layer_gradient_vanishing"


def test_a_rate_of_0_has_the_schedule_in_its_remedy():
    records = steps(loss=[2.0 + 0.01 * (n % 7) for n in range(200)], learning_rate=[0.0] * 200)
    replay = diagnose_run(records, {"framework": "transformers"})
    (case,) = [each for each in replay.cases.values() if each.diagnosis is not None]

    assert case.diagnosis.cause == "frozen_parameters"
    assert "The learning rate has been 0" in case.diagnosis.evidence[0].text
    assert "(`lr_scheduler_type`), the warm-up (`warmup_steps`) that does" in case.diagnosis.remedy
    assert "is not 0" not in case.diagnosis.remedy


def test_a_gradient_norm_that_is_0_in_some_of_the_records_is_contradicted():
    symptom = Symptom(
        "grad_vanishing", Severity.WARNING, 1, 32, "It is 0.", {"grad_norm_before": 0.0}
    )
    context = CaseContext({"grad_vanishing": symptom})
    some, all_zero = SignalRange(1, 64, 32, 0.0, 0.4), SignalRange(1, 64, 64, 0.0, 0.0)

    assert diagnose(replace(context, ranges={"grad_norm": all_zero}), {"it": FrozenParameters()})
    assert not diagnose(replace(context, ranges={"grad_norm": some}), {"it": FrozenParameters()})


def test_a_rate_that_the_log_rounds_to_0_is_contradicted_by_a_policy_that_changes():
    count = 200
    run = {"learning_rate": [0.0] * count, "reward": [0.9 + 0.01 * (n % 7) for n in range(count)]}

    assert "frozen_parameters" in diagnose_run(steps(**run)).causes
    changing = steps(**run, clip_fraction=[0.002 * (n % 3) for n in range(count)])
    assert "frozen_parameters" not in diagnose_run(changing).causes
