"""Tests of the cause learning_rate_too_high."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
import torch
from scipy.sparse.linalg import LinearOperator, eigsh
from support.diagnoses import diagnose, diagnose_run, make_context
from support.layer_trainings import make, make_examples, perceptron
from support.tiny_trainings import GOOD_LEARNING_RATE, Training

from sentinel.causes.learning_rate_too_high import LearningRateTooHigh
from sentinel.config.settings import build_causes
from sentinel.model.diagnosis import SignalRange
from sentinel.model.record import Event
from sentinel.testing import event, steps

FAST = 100 * GOOD_LEARNING_RATE
METADATA = {"learning_rate": FAST, "warmup_steps": 0.0}


def is_diagnosed(context):
    return diagnose(context, {"it": LearningRateTooHigh()}) is not None


@pytest.mark.parametrize("seed", range(2))
def test_a_rate_raised_a_hundredfold_is_diagnosed(seed):
    run = Training(
        rate=lambda step: GOOD_LEARNING_RATE if step < 200 else FAST, count=250, seed=seed
    )
    replay = diagnose_run(run.records(), METADATA)

    assert replay.causes == ["learning_rate_too_high"]
    (case,) = replay.cases.values()
    assert "0.3" in case.diagnosis.evidence[-1].text
    assert 200 <= case.diagnosis.evidence[0].step <= 205


def test_a_warm_up_to_a_high_rate_is_diagnosed():
    run = Training(rate=lambda step: FAST * min(1.0, step / 300))

    assert diagnose_run(run.records(), METADATA).causes == ["learning_rate_too_high"]


def test_a_training_at_a_good_rate_has_no_case():
    assert diagnose_run(Training().records(), {"learning_rate": GOOD_LEARNING_RATE}).causes == []


@pytest.mark.parametrize(
    ("rate", "cause"), [(50.0, "learning_rate_too_high"), (0.02, "numerical_breakdown")]
)
def test_a_loss_that_explodes_to_nan_is_of_a_rate_that_is_far_too_high(rate, cause):
    """Gradient descent with momentum at a thousand times its rate is NaN after six steps."""
    context = make_context(
        None, {"learning_rate": rate}, loss_divergence=3, grad_explosion=5, nan_or_inf=6
    )

    assert diagnose(context, build_causes()).cause == cause


def test_a_bad_batch_has_another_cause():
    run = Training(bad=range(200, 203), count=260).records()

    assert (
        "learning_rate_too_high"
        not in diagnose_run(run, {"learning_rate": GOOD_LEARNING_RATE}).causes
    )


def test_repeated_jumps_are_diagnosed_and_a_single_one_is_not():
    once = make_context(loss_spike=100, grad_explosion=100)
    again = replace(once.symptoms["loss_spike"], occurrences=3)

    assert not is_diagnosed(once)
    assert is_diagnosed(replace(once, symptoms={**once.symptoms, "loss_spike": again}))


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"framework": "trl", "algorithm": "dpo", "learning_rate": 5e-5}, True),
        ({"framework": "trl", "algorithm": "dpo", "learning_rate": 5e-5, "peft": "0.18"}, True),
        (
            {"framework": "trl", "algorithm": "dpo", "learning_rate": 5e-5, "peft_type": "LORA"},
            False,
        ),
        ({"framework": "trl", "algorithm": "sft", "learning_rate": 5e-5}, False),
        ({"framework": "trl", "algorithm": "reward", "learning_rate": 5e-5}, False),
        ({"framework": "trl", "algorithm": "sft", "learning_rate": 5e-4}, True),
        ({"learning_rate": 3e-3}, False),
        ({"learning_rate": 0.02}, True),
        ({"learning_rate": 0.02, "peft_type": "LORA"}, False),
        ({"learning_rate": 0.02, "optimizers": "SGD"}, False),
        ({"learning_rate": 3.0, "optimizers": "SGD"}, True),
        ({"learning_rate": 0.5, "optimizers": "Prodigy"}, False),
    ],
)
def test_the_highest_usual_rate_depends_on_the_training(metadata, expected):
    evidence = LearningRateTooHigh().evidence(make_context(metadata, loss_divergence=500))

    assert any("high for" in each.text for each in evidence) is expected


@pytest.mark.parametrize(
    ("metadata", "expected"),
    [
        ({"optimizers": "AdamW"}, "at 0.01 or less, which is usual for Adam."),
        ({"optimizers": "SGD"}, "with a third of the learning rate"),
        ({}, "with a third of the learning rate"),
    ],
)
def test_the_remedy_names_a_rate_that_is_usual_for_the_optimizer(metadata, expected):
    remedy = LearningRateTooHigh().remedy(make_context({**metadata, "learning_rate": 3.0}))

    assert expected in remedy


@pytest.mark.parametrize("detector", ["loss_plateau", "loss_never_moved", "grad_vanishing"])
def test_a_rate_far_above_the_usual_explains_a_training_that_is_stuck(detector):
    metadata = {"framework": "trl", "algorithm": "sft", "peft_type": "LORA"}
    stuck = {detector: 100}

    assert is_diagnosed(make_context({**metadata, "learning_rate": 0.2}, **stuck))
    assert not is_diagnosed(make_context({**metadata, "learning_rate": 2e-3}, **stuck))
    assert not is_diagnosed(make_context({"learning_rate": 0.2}, **stuck))


def test_lora_at_a_thousand_times_the_usual_rate_is_diagnosed():
    """The loss stays at the level of token frequencies; no other detector needs to fire."""
    rng = np.random.default_rng(0)
    loss = (3.4 + 4.6 * 0.7 ** np.arange(300)) * rng.lognormal(0, 0.03, 300)
    metadata = {"framework": "trl", "algorithm": "sft", "peft_type": "LORA", "learning_rate": 0.2}
    replay = diagnose_run(steps(loss=loss.tolist()), metadata)

    assert replay.causes == ["learning_rate_too_high"]


def test_the_first_update_shows_a_rate_a_thousand_times_too_high():
    replay = diagnose_run(make("a thousand times the rate", 0).records(), {"learning_rate": 1.0})

    assert replay.causes == ["learning_rate_too_high"]
    assert [each.step for each in replay.notifications] == [1]
    (case,) = replay.cases.values()
    texts = [each.text for each in case.diagnosis.evidence]
    assert "A step changes half of the layers by" in texts[0]
    assert any("The gradient of layer" in text for text in texts)


@pytest.mark.parametrize("seed", [0, 1])
def test_units_that_die_of_a_high_rate_are_no_frozen_parameters(seed):
    run = diagnose_run(make("units die of the rate", seed).records(), {"learning_rate": 3.0})

    assert run.causes[-1] == "learning_rate_too_high"
    assert not {"frozen_parameters", "data_not_learnable"} & {*run.causes}


def test_a_sharpness_far_beyond_the_limit_is_diagnosed_before_any_other_sign():
    replay = diagnose_run(measured_sharpness(4.0), {"learning_rate": 4.0})

    assert replay.causes == ["learning_rate_too_high"]
    assert [each.step for each in replay.notifications] == [40]
    (case,) = replay.cases.values()
    assert "times the highest at which the learning rate is" in case.diagnosis.evidence[0].text


def test_the_sharpness_of_a_training_at_a_good_rate_has_no_case():
    assert diagnose_run(measured_sharpness(0.5), {"learning_rate": 0.5}).causes == []


def measured_sharpness(rate):
    """Gradient descent with small batches, and the sharpness of a batch at each tenth step."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    model, (inputs, labels) = perceptron(2, torch.nn.Tanh), make_examples(512, 0)
    optimizer, batches = torch.optim.SGD(model.parameters(), rate), torch.randint(512, (80, 32))
    for step, batch in enumerate(batches, 1):
        loss = torch.nn.functional.cross_entropy(model(inputs[batch]), labels[batch])
        if step % 10 == 0:
            sharpness = largest_eigenvalue(loss, [*model.parameters()])
            values = {"sharpness": sharpness, "sharpness_ratio": sharpness * rate / 2}
            yield event(Event.STEP, step, time=float(step), **values)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()


def largest_eigenvalue(loss, parameters):
    """Of the Hessian, by Lanczos."""
    gradients = torch.autograd.grad(loss, parameters, create_graph=True)
    gradient = torch.cat([each.flatten() for each in gradients])

    def multiply(vector):
        product = gradient @ torch.as_tensor(vector, dtype=gradient.dtype).flatten()
        products = torch.autograd.grad(product, parameters, retain_graph=True)
        return torch.cat([each.flatten() for each in products]).numpy()

    size = (len(gradient), len(gradient))
    operator = LinearOperator(size, matvec=multiply, dtype=np.float32)
    first = np.ones(len(gradient), dtype=np.float32)
    (value,) = eigsh(operator, 1, which="LA", v0=first, tol=0.01, return_eigenvectors=False)
    return float(value)


def test_a_rate_that_had_decayed_before_contradicts_it():
    context = make_context(None, {"grad_norm": 9.0}, loss_divergence=80)
    constant = [(step, 1e-3) for step in range(100)]
    decayed = [(step, 1e-3 * 0.95**step) for step in range(100)]
    ranges = {"learning_rate": SignalRange(0, 100, 0, 0.0, 1e-3)}
    context = replace(context, ranges=ranges)

    assert is_diagnosed(replace(context, history={"learning_rate": constant}))
    assert not is_diagnosed(replace(context, history={"learning_rate": decayed}))


def test_a_loss_that_fell_without_a_bound_has_another_cause():
    context = make_context(METADATA, None, loss_divergence=300)
    symptom = context.symptoms["loss_divergence"]
    fallen = replace(symptom, evidence={"largest_loss_at_start": 3.0})

    assert [*LearningRateTooHigh().contradictions(context)] == []
    unbounded = replace(context, symptoms={"loss_divergence": fallen})
    assert [*LearningRateTooHigh().contradictions(unbounded)] == [
        "The loss fell, and nothing bounds it from below."
    ]


def test_a_loss_that_rises_when_the_run_is_resumed_has_another_cause():
    """One that rises long after the resume has not."""
    rise = {"loss_divergence": 400, "grad_explosion": 405}

    assert is_diagnosed(make_context(METADATA, **rise))
    assert not is_diagnosed(make_context(METADATA, **rise, step_regression=395))
    assert is_diagnosed(make_context(METADATA, **rise, step_regression=100))
