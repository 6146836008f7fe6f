"""Tests of the cause overfit."""

from __future__ import annotations

import numpy as np
import pytest
from support.diagnoses import decaying_loss, diagnose_run
from support.tiny_trainings import Training

from sentinel.model.record import Event
from sentinel.testing import event

METADATA = {"framework": "transformers", "num_train_epochs": 400.0}


@pytest.mark.parametrize("seed", range(2))
def test_few_examples_seen_often_are_diagnosed(seed):
    replay = diagnose_run(Training(examples=64, count=300, seed=seed).records(), METADATA)

    assert replay.causes == ["overfit"]
    (case,) = replay.cases.values()
    assert case.diagnosis.title == "overfitting"
    assert "400 epochs" in case.diagnosis.evidence[-1].text
    assert "`load_best_model_at_end`" in case.diagnosis.remedy


def test_the_remedy_names_the_step_of_the_best_evaluation():
    replay = diagnose_run(Training(examples=64, count=200).records(), METADATA)
    (case,) = replay.cases.values()
    best = case.incident.finding.evidence["best_step"]

    assert f"at step {best:.0f}," in case.diagnosis.remedy


def diverging():
    """A training loss that rises, and a held-out loss that rises with it."""
    since = np.maximum(np.arange(600) - 300, 0)
    losses = decaying_loss(0, 600) * np.minimum(1.01**since, 5.0)
    for step, loss in enumerate(losses.tolist(), 1):
        yield event(Event.STEP, step, time=float(step), loss=loss)
        if step % 20 == 0:
            held_out = 1.1 * float(np.median(losses[step - 9 : step]))
            yield event(Event.EVAL, step, time=float(step), eval_loss=held_out)


def test_a_diverging_training_has_another_cause():
    assert "overfit" not in diagnose_run(diverging(), METADATA).causes
