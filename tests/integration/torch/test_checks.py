"""Trainings with an error that no curve shows are named by it in the first steps."""

import gc
from weakref import ref

import pytest
import torch
from support.checked_trainings import HEALTHY, SILENT
from support.training_loops import monitored

from sentinel.client.capture.owned_modules import SeenModules
from sentinel.client.checks.batches import fingerprint
from sentinel.config.settings import load_settings
from sentinel.model.record import CHECK_KEY, PROBLEM_KEY, Event
from sentinel.pipeline.pipeline import build

MAX_STEPS = 20


@pytest.fixture(autouse=True)
def one_seed(one_thread):
    torch.manual_seed(0)


def notifications(records):
    """Detectors of the cases of which people are notified, with the steps at which they opened."""
    pipeline, found = build(load_settings()), {}
    for record in records:
        for result in pipeline.process(record):
            for notification in result.case_notifications:
                incident = notification.incident
                found.setdefault(incident.key.detector, incident.opened_step)
    return found


@pytest.mark.parametrize("training", SILENT, ids=lambda each: each.__name__)
def test_an_error_is_named_within_twenty_steps(training, recorded):
    monitored(training)()

    found = notifications(recorded()[0])
    assert [*found] == [SILENT[training]]
    assert found[SILENT[training]] <= MAX_STEPS


@pytest.mark.parametrize("training", HEALTHY, ids=lambda each: each.__name__)
def test_a_healthy_training_passes_the_checks(training, recorded, reported_metadata):
    monitored(training)()

    records = recorded()[0]
    checks = [each for each in records if each.event is Event.CHECK]
    assert {each.attributes[PROBLEM_KEY] for each in checks} <= {""}
    # Weights are not compared around a step with a closure, or at a rate that changes nothing.
    unchecked = ("lbfgs", "norms_too_coarse_for_the_rate", "rate_as_a_tensor")
    passed = {each.attributes[CHECK_KEY] for each in checks}
    assert "weights" in passed or training.__name__ in unchecked
    assert notifications(records) == {}
    assert not any(key.startswith("patch/check_") for key in reported_metadata()[0])


def test_no_model_is_kept_alive():
    def train():
        model = torch.nn.Linear(4, 1)
        optimizer = torch.optim.LBFGS(model.parameters())

        def closure():
            optimizer.zero_grad()
            loss = model(torch.ones(2, 4)).square().mean()
            loss.backward()
            return loss

        for _ in range(12):
            optimizer.step(closure)
        return ref(model)

    with monitored:
        known = train()
        gc.collect()
        assert known() is None


def test_a_model_at_the_address_of_another_is_found():
    seen = SeenModules()
    for _ in range(20):
        model = torch.nn.Linear(2, 2)
        seen.add(model)
        assert seen.modules() == [model]
        del model
        gc.collect()


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16, torch.int64, torch.bool])
def test_a_fingerprint_is_of_the_elements_of_any_dtype(dtype):
    batch = (torch.arange(600) % 7 > 2).to(dtype).reshape(20, 30)
    other = batch.clone()
    other[0, 0] = not other[0, 0]

    assert fingerprint([batch]) == fingerprint({"inputs": batch.clone()}) != 0
    assert fingerprint([other]) != fingerprint([batch])
    assert fingerprint([torch.ones_like(batch)]) == 0
