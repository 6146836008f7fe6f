"""Tests of the cause overfit."""

from __future__ import annotations

import numpy as np
import pytest
from support.diagnoses import decaying_loss, diagnose_run
from support.tiny_trainings import Training

from sentinel.causes.overfit import Overfit
from sentinel.model.diagnosis import CaseContext, Symptom
from sentinel.model.finding import Severity
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


BEST = 50.0


def advice(*checkpoint_steps, **metadata):
    """The first sentences of the remedy after a best evaluation at step 50."""
    rising = Symptom("overfitting", Severity.WARNING, 60, 175, "It rose.", {"best_step": BEST})
    context = CaseContext(
        {"overfitting": rising}, metadata=metadata, checkpoint_steps=checkpoint_steps
    )
    return Overfit().remedy(context).partition(" Stop here")[0]


@pytest.mark.parametrize(
    ("checkpoint_steps", "expected"),
    [
        ((50, 100), "Use the checkpoint of the best evaluation, at step 50."),
        (
            (20, 40, 100),
            "The best evaluation was at step 50: use the last checkpoint before it, at step 40.",
        ),
        ((100, 200), "The best evaluation was at step 50, before the oldest known checkpoint,"),
        ((), "The best evaluation was at step 50, and no checkpoint is known."),
    ],
)
def test_the_remedy_names_a_checkpoint_that_exists(checkpoint_steps, expected):
    assert advice(*checkpoint_steps).startswith(expected)


def test_a_deleted_checkpoint_is_not_named():
    assert "before the oldest known checkpoint, at step 60" in advice(
        50, 60, 70, save_total_limit=2.0
    )
    assert advice(50, 60, 70, save_total_limit=2.0, load_best_model_at_end="True") == (
        "Use the checkpoint of the best evaluation, at step 50."
    )


def test_the_checkpoints_of_a_run_are_known_to_its_causes():
    records = Training(examples=64, count=200).records()
    with_saves = (
        each
        for record in records
        for each in (record, *([event(Event.SAVE, record.step)] if record.step == 1 else []))
    )
    (case,) = diagnose_run(with_saves, METADATA).cases.values()

    assert "use the last checkpoint before it, at step 1." in case.diagnosis.remedy


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


def falls_then_rises(seed, held_out):
    """A training loss that falls, and rises threefold over the second half of 600 steps."""
    losses = decaying_loss(seed, 600) * np.exp(np.clip(np.arange(600) - 300, 0, None) / 300 * 1.1)
    for step, loss in enumerate(losses.tolist(), start=1):
        yield event(Event.STEP, step, time=float(step), loss=loss, epoch=step / 100)
        if held_out and step % 50 == 0:
            yield event(Event.EVAL, step, time=float(step), eval_loss=1.0)


@pytest.mark.parametrize("seed", range(2))
def test_a_training_loss_alone_that_falls_and_rises_makes_overfitting_possible(seed):
    replay = diagnose_run(falls_then_rises(seed, held_out=False))

    assert replay.causes == [""]
    (case,) = replay.cases.values()
    possible = {each.cause for each in case.possible_causes}
    assert possible == {"overfit", "learning_rate_too_high"}
    assert any("held-out data" in each.sign for each in case.possible_causes)
    assert "overfit" not in diagnose_run(falls_then_rises(seed, held_out=True)).causes
