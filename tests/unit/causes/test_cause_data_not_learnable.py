"""Tests of the cause data_not_learnable."""

from __future__ import annotations

from dataclasses import replace
from random import Random

import pytest
from support.diagnoses import diagnose, diagnose_run, make_context
from support.tiny_trainings import GOOD_LEARNING_RATE, Training

from sentinel.causes.data_not_learnable import DataNotLearnable
from sentinel.model.finding import Severity
from sentinel.testing import steps

METADATA = {"framework": "trl", "algorithm": "sft", "learning_rate": GOOD_LEARNING_RATE}


@pytest.mark.parametrize("labels", ["random", "coin"])
@pytest.mark.parametrize("seed", range(2))
def test_labels_unrelated_to_the_input_are_diagnosed(labels, seed):
    replay = diagnose_run(Training(labels=labels, seed=seed, count=260).records(), METADATA)

    assert replay.causes == ["data_not_learnable"]
    assert len(replay.notifications) == 1
    (case,) = replay.cases.values()
    texts = " ".join(item.text for item in case.diagnosis.evidence)
    assert "weights are trained" in texts
    assert ("random guessing" in texts) is (labels == "coin")
    assert "`max_length`" in case.diagnosis.remedy


def test_a_loss_that_swings_far_contradicts_it():
    context = make_context(None, {"learning_rate": 5e-3}, loss_never_moved=1, oscillation=1)

    assert not diagnose(context, {"it": DataNotLearnable()})
    swing = replace(context.symptoms["oscillation"], severity=Severity.INFO)
    context = replace(
        context, symptoms={**context.symptoms, "oscillation": swing}, values={"grad_norm": 1.0}
    )
    assert diagnose(context, {"it": DataNotLearnable()})


def test_a_loss_that_never_moved_is_one_case():
    replay = diagnose_run(Training(labels="random", count=260).records(), METADATA)
    (case,) = replay.cases.values()

    detectors = {case.incident.key.detector, *(each.key.detector for each in case.others)}
    assert detectors == {"loss_never_moved", "loss_plateau"}


def test_weights_that_are_frozen_are_another_cause():
    assert diagnose_run(Training(frozen=True, count=60).records(), METADATA).causes == [
        "frozen_parameters"
    ]


@pytest.mark.parametrize("values", [{}, {"grad_norm": 0.0}, {"grad_norm": 1.0}])
def test_it_is_diagnosed_only_if_the_model_is_known_to_train(values):
    found = diagnose(make_context({}, values, loss_never_moved=1), {"it": DataNotLearnable()})

    assert (found is not None) is (values.get("grad_norm") == 1.0)


def test_a_learning_rate_alone_makes_it_probable_and_the_missing_norm_is_named():
    context = make_context({}, {"learning_rate": 1e-4}, loss_never_moved=1)
    found = diagnose(context, {"it": DataNotLearnable()})

    assert found.confidence < 0.65
    assert "no gradient norm is logged" in found.evidence[-1].text


@pytest.mark.parametrize("name", ["loss_divergence", "loss_spike"])
@pytest.mark.parametrize("severity", Severity)
def test_a_loss_that_rises_after_it_was_flat_has_another_cause(name, severity):
    context = make_context({}, {"grad_norm": 1.0}, loss_never_moved=1, **{name: 350})
    rise = replace(context.symptoms[name], severity=severity)
    context = replace(context, symptoms={**context.symptoms, name: rise})
    found = diagnose(context, {"it": DataNotLearnable()})

    assert (found is not None) is (severity is Severity.INFO)


def test_a_flat_loss_that_jumps_is_not_reported_as_data_with_nothing_to_learn():
    rng = Random(0)
    levels = [0.5] * 350 + [2.0] * 50
    losses = [level + rng.gauss(0, 0.02) for level in levels]
    norms = [1.0 + rng.gauss(0, 0.05) for _ in levels]
    replay = diagnose_run(steps(loss=losses, grad_norm=norms))

    assert list(replay.named_causes) == ["data_not_learnable"]
    assert "data_not_learnable" not in replay.causes
