"""Trainings with an error that no curve shows are named by it in the first steps."""

import pytest
import torch
from support.checked_trainings import HEALTHY, SILENT
from support.training_loops import monitored

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
    assert "weights" in {each.attributes[CHECK_KEY] for each in checks} or "lbfgs" in repr(training)
    assert notifications(records) == {}
    assert not any(key.startswith("patch/check_") for key in reported_metadata()[0])
