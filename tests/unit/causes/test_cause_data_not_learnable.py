"""Tests of the cause data_not_learnable."""

from __future__ import annotations

import pytest
from support.diagnoses import diagnose_run, make_context
from support.tiny_trainings import GOOD_LEARNING_RATE, Training

from sentinel.causes.data_not_learnable import DataNotLearnable
from sentinel.pipeline.diagnose import diagnose

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
