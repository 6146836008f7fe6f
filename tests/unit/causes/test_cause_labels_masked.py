"""Tests of the cause labels_masked."""

from __future__ import annotations

from dataclasses import replace
from math import nan

import pytest
import torch
from support.diagnoses import decaying_loss, diagnose, diagnose_run, make_context
from support.tiny_trainings import Training

from sentinel.causes.labels_masked import LabelsMasked
from sentinel.model.diagnosis import SignalRange
from sentinel.testing import steps

SFT = {"framework": "trl", "algorithm": "sft", "logging_steps": 1.0}


def test_a_training_without_labels_is_diagnosed_at_its_first_step():
    replay = diagnose_run(Training(labels="masked", count=60).records(), SFT)

    assert replay.causes == ["labels_masked"]
    assert replay.notifications[0].step == 1
    assert replay.notifications[0].diagnosis.cause == "labels_masked"
    assert "`completion_only_loss`" in replay.notifications[0].diagnosis.remedy


@pytest.mark.parametrize("norm", [0.0, nan], ids=["zero gradient", "NaN gradient"])
def test_a_loss_of_0_since_the_start_is_diagnosed(norm):
    run = steps(loss=[0.0] * 60, grad_norm=[norm] * 60)

    assert diagnose_run(run, SFT).causes == ["labels_masked"]


def test_a_loss_of_0_alone_has_no_cause():
    """Without settings and a gradient norm, a missing loss term is as likely."""
    assert diagnose_run(steps(loss=[0.0] * 60)).causes == [""]


def test_half_precision_that_overflows_later_has_another_cause():
    run = Training(dtype=torch.float16, count=40).records()

    assert diagnose_run(run, {**SFT, "fp16": "true"}).causes == ["numerical_breakdown"]


def test_a_loss_that_decreased_to_0_has_no_case():
    loss = [2.0 * 0.9**n for n in range(90)] + [0.0] * 60

    assert diagnose_run(steps(loss=loss, grad_norm=loss), SFT).causes == []


def test_a_loss_that_becomes_nan_later_has_another_cause():
    loss = decaying_loss(0, 60).tolist() + [nan] * 20

    assert "labels_masked" not in diagnose_run(steps(loss=loss), SFT).causes


def test_a_loss_that_was_above_0_in_most_records_and_a_reward_contradict_masked_labels():
    zero = make_context({"algorithm": "sft"}, {"grad_norm": 0.0}, loss_zero=10)
    few, most = SignalRange(1, 100, 20, 0.0, 2.0), SignalRange(1, 100, 90, 0.0, 2.0)

    assert diagnose(replace(zero, ranges={"loss": most}), {"it": LabelsMasked()})
    assert not diagnose(replace(zero, ranges={"loss": few}), {"it": LabelsMasked()})
    assert not diagnose(replace(zero, values={"reward": 0.1}), {"it": LabelsMasked()})
