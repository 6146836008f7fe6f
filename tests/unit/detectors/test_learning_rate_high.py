"""Tests of the detector learning_rate_high."""

from random import Random

import pytest
from support.logged_faults import ADAPTER_LOSSES, ADAPTER_NORMS
from support.loss_series import falling_loss, flat_loss

from sentinel.detectors.learning_rate_high import LearningRateHigh
from sentinel.model.finding import Clear, Finding, Severity
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
    records = [*settings(0.05, **LORA), *steps(loss=falling_loss(1000, seed))]
    detector = LearningRateHigh()
    outputs = [update_detector(detector, record) for record in records]
    findings = [output for output in outputs if isinstance(output, Finding)]

    assert len(findings) == 16
    assert {finding.severity for finding in findings} == {Severity.INFO}


@pytest.mark.parametrize("seed", range(5))
def test_a_high_rate_with_a_loss_that_stays_is_a_warning(seed):
    falling = [8.0 * 0.7**t + 3.4 for t in range(10)]
    records = [
        *settings(0.08, **LORA),
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


@pytest.mark.parametrize("norms", [[1.0] * 200, [1.0] * 12 + [0.8] * 188])
def test_a_norm_that_is_clipped_to_one_value_has_not_collapsed(norms):
    records = [*settings(0.02, **LORA), *steps(grad_norm=norms, loss=falling_loss(200))]
    detector = LearningRateHigh()
    outputs = [update_detector(detector, record) for record in records]

    assert not [each for each in outputs if isinstance(each, Finding) and not each.severity]


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


def outputs_of(*parts):
    detector = LearningRateHigh()
    return [update_detector(detector, record) for part in parts for record in part]


def warnings(outputs):
    """The findings with their steps, which begin after two records of settings."""
    found = [(at - 1, x) for at, x in enumerate(outputs) if isinstance(x, Finding)]
    return [(step, finding) for step, finding in found if finding.severity is None]


def test_a_rate_far_beyond_any_recipe_is_a_warning_though_the_loss_falls():
    """Adapters at 2.0: the norm has collapsed at the third step, and the loss ends far too high."""
    losses = [max(2.8, 7.2 * 0.9**at) for at in range(220)]
    norms = [0.5, 16.0, *[0.03 * 0.98**at + 0.008 for at in range(218)]]
    outputs = outputs_of(settings(2.0, **LORA), steps(loss=losses, grad_norm=norms))
    step, first = warnings(outputs)[0]

    assert step == 64
    assert first.summary.startswith("The learning rate is 2, 2000 times the highest usual")
    assert len(warnings(outputs)) == 220 - 63


def test_adapters_at_a_rate_of_two_are_found_after_64_steps():
    rates = [2.0 * (1 - at / 200) for at in range(80)]
    logged = steps(loss=ADAPTER_LOSSES, grad_norm=ADAPTER_NORMS, learning_rate=rates)

    assert warnings(outputs_of(settings(2.0, **LORA), logged))[0][0] == 64


def test_a_log_of_few_lines_needs_as_many_steps():
    lines = [event(Event.STEP, 10 * at, loss=3.0 + 0.1 * (at % 3)) for at in range(1, 12)]
    outputs = outputs_of(settings(2.0, **LORA), lines)

    assert warnings(outputs)[0][0] == 8


def test_the_norm_is_compared_with_the_highest_of_the_first():
    norms = [0.03, 16.0, *[0.03] * 40, *[0.008] * 60]
    records = steps(grad_norm=norms, loss=falling_loss(102))
    found = warnings(outputs_of(settings(0.05, **LORA), records))

    assert "the gradient norm has fallen from 16 to 0.008" in found[0][1].summary


def test_a_warm_up_below_the_limit_does_not_count():
    rates = [min(2.0, 0.001 * at) for at in range(300)]
    records = steps(loss=falling_loss(300), learning_rate=rates)
    outputs = outputs_of(settings(2.0, **LORA), records)

    assert warnings(outputs)[0][0] == 102 + 63


def test_a_training_that_learns_at_once_at_any_rate_is_noted_only():
    """A toy problem whose loss falls to nothing."""
    losses = [3.0 * 0.9**at + 0.02 for at in range(300)]

    assert not warnings(outputs_of(settings(2.0, **LORA), steps(loss=losses)))


def test_what_the_rate_has_destroyed_lasts_as_the_rate_decays():
    """At 0.2, decaying linearly, the loss of a LoRA training stays at 3 to the end."""
    rates = [0.2 * (1 - at / 220) for at in range(220)]
    losses = [max(3.0, 7.2 * 0.9**at) for at in range(220)]
    outputs = outputs_of(settings(0.2, **LORA), steps(loss=losses, learning_rate=rates))
    _, last = warnings(outputs)[-1]

    assert isinstance(outputs[-1], Finding)
    assert last.onset_step == 1
    assert last.summary.startswith(
        "The learning rate was 0.2 at step 1, 200 times the highest usual for fine-tuning with "
        "adapters (0.001), and is 0.000909 at step 220; "
    )
    assert last.evidence["learning_rate"] == rates[-1]


def test_it_ends_when_the_loss_recovers_as_the_rate_decays():
    rates = [0.2 * (1 - at / 220) for at in range(220)]
    losses = [3.0] * 150 + [1.8] * 70
    outputs = outputs_of(settings(0.2, **LORA), steps(loss=losses, learning_rate=rates))

    assert isinstance(outputs[150], Finding)
    assert outputs[-1] == Clear() or outputs[-1].severity is Severity.INFO


def signed_loss(*levels, noise=0.02):
    """64 values around each level."""
    rng = Random(3)
    return [level + rng.gauss(0.0, noise) for level in levels for _ in range(64)]


def test_a_loss_below_zero_that_rises_is_harm_and_has_not_been_learnt():
    """All values are below a tenth of the first, which is negative."""
    losses = signed_loss(-0.5, -0.3, -0.2)

    assert warnings(outputs_of(settings(0.6, **LORA), steps(loss=losses)))[-1][0] == 192


def test_the_harm_to_a_loss_below_zero_lasts_as_the_rate_decays():
    """Three quarters of -0.4 are above it, so that a share would end it at once."""
    rates = [0.6] * 128 + [1e-4] * 64
    outputs = outputs_of(
        settings(0.6, **LORA), steps(loss=signed_loss(-0.4, -0.4, -0.4), learning_rate=rates)
    )

    assert warnings(outputs)[-1][0] == 192


def test_the_harm_to_a_loss_below_zero_ends_once_its_level_has_fallen():
    rates = [0.6] * 128 + [1e-4] * 64
    losses = signed_loss(-0.4, -0.4, -0.45)
    outputs = outputs_of(settings(0.6, **LORA), steps(loss=losses, learning_rate=rates))

    assert 128 < warnings(outputs)[-1][0] < 160


def test_a_loss_that_falls_far_below_zero_is_learnt():
    """The logarithm of a density has no lowest value."""
    losses = [4.0 - 0.03 * at for at in range(300)]
    found = warnings(outputs_of(settings(0.6, **LORA), steps(loss=losses)))

    assert max(step for step, _ in found) < 150


@pytest.mark.parametrize(
    "metadata",
    [
        {"optim": "sgd"},
        {"optim": "adamw_torch_fused", "optimizers": "Prodigy"},
        {"peft_type": "PROMPT_TUNING"},
        {"framework": "pytorch"},
    ],
)
def test_rates_of_other_optimizers_and_of_soft_prompts_are_no_finding(metadata):
    records = steps(loss=flat_loss(300))

    outputs = outputs_of(settings(1.0, algorithm="sft", **metadata), records)

    assert not [output for output in outputs if isinstance(output, Finding)]


def test_a_group_with_100_times_the_rate_of_most_weights_is_noted():
    """Whatever the kind of training: here one that is not known."""
    rates = {
        "highest_group_learning_rate": 0.1,
        "highest_group_number": 2.0,
        "highest_group_weight_share": 0.24,
        "main_group_learning_rate": 0.001,
    }
    known = Record("run", WHOLE_RUN, 1, 0.0, Event.METADATA, rates, {})
    outputs = outputs_of([known], steps(loss=falling_loss(100), learning_rate=[0.001] * 100))
    found = [output for output in outputs if isinstance(output, Finding)]

    assert len(found) == 16
    assert {finding.severity for finding in found} == {Severity.INFO}
    assert found[0].summary == (
        "Parameter group 2, with 24.0% of the weights, has the learning rate 0.1, 100 times that "
        "of most weights (0.001)."
    )
