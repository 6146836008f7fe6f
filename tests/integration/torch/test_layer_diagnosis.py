"""A layer that is broken in a real training, from the gradient to the diagnosis that names it."""

from __future__ import annotations

import pytest
import torch
from support.gradient_flows import every_step, monitored
from support.layer_trainings import BROKEN, HEALTHY, make, make_examples

import sentinel
from sentinel.config.settings import load_settings
from sentinel.pipeline.pipeline import build


@pytest.fixture(autouse=True)
def at_every_step():
    torch.set_num_threads(1)
    with every_step():
        yield


def train(kind, count=40):
    """Run a training of that kind as a user would: without any call for its layers."""
    training = make(kind, 0)
    inputs, labels = make_examples(training.examples, 0)
    with monitored:
        optimizer = training.optimizer([*training.model.parameters()])
        for step in range(1, count + 1):
            chosen = torch.randint(training.examples, (training.batch,))
            loss = training.loss(training.model, inputs[chosen], labels[chosen], step)
            optimizer.zero_grad()
            loss.backward()
            torch.nn.utils.clip_grad_norm_(training.model.parameters(), 1.0)
            optimizer.step()
            rate = optimizer.param_groups[0]["lr"]
            sentinel.log({"loss": loss.item(), "learning_rate": rate}, step=step)


def diagnose(recorded):
    """The last notification of each case."""
    pipeline, cases = build(load_settings()), {}
    for record in recorded()[0]:
        for result in pipeline.process(record):
            for notification in result.case_notifications:
                cases[notification.incident.name] = notification
    return [*cases.values()]


def test_a_detached_block_is_named_as_frozen(recorded):
    assert "detached block" in BROKEN
    train("detached block")
    (case,) = diagnose(recorded)

    assert case.incident.key.detector == "layer_gradient_dead"
    assert case.diagnosis.cause == "frozen_parameters"
    assert "layer `blocks.2.1` is exactly 0 since the first" in case.incident.finding.summary
    assert "initial weights of `blocks.2.1`" in case.diagnosis.remedy


def test_the_second_update_shows_a_rate_that_is_far_too_high(recorded):
    train("a thousand times the rate")
    case = diagnose(recorded)[0]

    assert case.incident.key.detector == "layer_update_ratio"
    assert case.incident.opened_step == 2
    assert case.diagnosis.cause == "learning_rate_too_high"


def test_a_healthy_training_has_no_case(recorded):
    assert "residual" in HEALTHY
    train("residual")

    assert diagnose(recorded) == []
