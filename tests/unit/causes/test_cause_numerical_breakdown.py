"""Tests of the cause numerical_breakdown."""

from __future__ import annotations

from math import inf, nan

import numpy as np
import pytest
import torch
from support.diagnoses import decaying_loss, diagnose_run
from support.tiny_trainings import Training

from sentinel.model.finding import Severity
from sentinel.testing import steps

HALF = {"framework": "transformers", "fp16": "true"}


def test_half_precision_that_overflows_is_diagnosed():
    replay = diagnose_run(Training(dtype=torch.float16, count=40).records(), HALF)

    assert replay.causes == ["numerical_breakdown"]
    (case,) = replay.cases.values()
    assert case.incident.severity is Severity.CRITICAL
    assert "float16" in case.diagnosis.evidence[-1].text
    assert "`bf16`" in case.diagnosis.remedy


def exploding(seed, overflow=240):
    """Norms that grow by a tenth per step from step 200 on, and overflow at step `overflow`.

    The loss rises with them: norms that grow while the loss falls are learning.
    """
    rng = np.random.default_rng(seed)
    since = np.maximum(np.arange(300) - 200, 0)
    norm = rng.lognormal(0, 0.2, 300) * 1.1**since
    loss = decaying_loss(seed, 300) * 1.01**since
    norm[overflow:], loss[overflow:] = inf, nan
    return steps(loss=loss.tolist(), grad_norm=norm.tolist())


@pytest.mark.parametrize("seed", range(5))
def test_gradients_that_grow_until_they_overflow_are_one_case(seed):
    replay = diagnose_run(exploding(seed))

    assert replay.causes == ["numerical_breakdown"]
    (case,) = replay.cases.values()
    assert case.incident.key.detector == "grad_explosion"
    assert [item.step for item in case.diagnosis.evidence][-1] == 241


def test_an_exhausted_loss_scale_is_evidence():
    count = 120
    scale = [65536.0 * 0.5 ** min(max(n - 60, 0), 20) for n in range(count)]
    loss = [*decaying_loss(0, 80).tolist(), *[nan] * 40]

    assert diagnose_run(steps(loss=loss, loss_scale=scale)).causes == ["numerical_breakdown"]


def test_masked_labels_have_another_cause():
    assert diagnose_run(Training(labels="masked", count=40).records(), HALF).causes == [
        "labels_masked"
    ]


def test_a_norm_that_a_loss_scaler_skipped_is_no_case():
    norms = [inf if n == 50 else 1.0 for n in range(120)]

    assert (
        diagnose_run(steps(loss=decaying_loss(0, 120).tolist(), grad_norm=norms), HALF).causes == []
    )
