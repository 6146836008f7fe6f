"""Tests of the detector learning_rate_high."""

import pytest
from support.loss_series import falling_loss, flat_loss

from sentinel.detectors.learning_rate_high import LearningRateHigh
from sentinel.model.finding import Finding, Severity
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.testing import event, first_finding, steps, update_detector


def detect(*parts):
    return first_finding(LearningRateHigh(), (record for part in parts for record in part))


def settings(rate, **metadata):
    """The METADATA record of these settings."""
    attributes = {"framework": "trl", **metadata}
    return [
        Record("run", WHOLE_RUN, 0, 0.0, Event.METADATA, {"learning_rate": rate}, attributes),
        event(Event.START, 0),
    ]


LORA = {"algorithm": "sft", "peft_type": "LORA"}


def test_a_rate_far_above_the_usual_is_noted_at_the_first_step():
    record, finding = detect(settings(0.2, **LORA), steps(loss=falling_loss(300)))

    assert record.step == 1
    assert finding.severity is Severity.INFO
    assert finding.summary == (
        "The learning rate is 0.2, 200 times the highest usual for fine-tuning with adapters "
        "(0.001)."
    )


@pytest.mark.parametrize("seed", range(5))
def test_a_high_rate_with_a_loss_that_falls_is_noted_only(seed):
    records = [*settings(0.2, **LORA), *steps(loss=falling_loss(1000, seed))]
    detector = LearningRateHigh()
    outputs = [update_detector(detector, record) for record in records]
    findings = [output for output in outputs if isinstance(output, Finding)]

    assert len(findings) == 16
    assert {finding.severity for finding in findings} == {Severity.INFO}


@pytest.mark.parametrize("seed", range(5))
def test_a_high_rate_with_a_loss_that_stays_is_a_warning(seed):
    falling = [8.0 * 0.7**t + 3.4 for t in range(10)]
    records = [
        *settings(0.2, **LORA),
        *steps(loss=[*falling, *flat_loss(200, seed=seed)]),
    ]
    found = [output for output in map(LearningRateHigh().update, records) if output]
    outputs = [(n, f) for n, f in enumerate(found) if isinstance(f, Finding) and not f.severity]

    assert outputs
    assert "the loss has not improved in" in outputs[0][1].summary


def test_a_high_rate_with_a_collapsed_gradient_norm_is_a_warning():
    norms = [0.5] * 40 + [0.003] * 60
    records = [*settings(0.5, **LORA), *steps(grad_norm=norms, loss=falling_loss(100))]
    found = [output for output in map(LearningRateHigh().update, records) if output]

    assert "the gradient norm has fallen from 0.5 to 0.003" in found[-1].summary
    assert found[-1].severity is None


@pytest.mark.parametrize(
    ("rate", "metadata"),
    [
        (2e-4, LORA),
        (5e-3, LORA),
        (2e-5, {"algorithm": "sft"}),
        (5e-4, {"algorithm": "sft"}),
        (1e-6, {"algorithm": "dpo"}),
        (0.1, {"framework": "lightning"}),
    ],
)
def test_a_usual_rate_is_no_finding_though_the_loss_stays(rate, metadata):
    assert detect(settings(rate, **metadata), steps(loss=flat_loss(200))) == (None, None)


def test_a_loss_that_is_learnt_does_not_have_to_fall_further():
    losses = [*falling_loss(20), *flat_loss(200, level=0.02)]
    records = [*settings(0.2, **LORA), *steps(loss=losses)]
    found = [output for output in map(LearningRateHigh().update, records) if output]

    assert {f.severity for f in found if isinstance(f, Finding)} == {Severity.INFO}
