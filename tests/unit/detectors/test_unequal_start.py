"""Values of the first step that a policy with dropout has, and others."""

import pytest

from sentinel.detectors.unequal_start import UnequalStart
from sentinel.model.finding import Finding
from sentinel.model.record import Event, Record
from sentinel.signals.run_metadata import ACTIVE_DROPOUT_KEY


def finding(values, step=1, dropout="Dropout of 0.1"):
    """What is found after the values of a step, and the metadata of a later one."""
    detector = UnequalStart()
    attributes = {ACTIVE_DROPOUT_KEY: dropout} if dropout else {}
    outputs = [
        detector.update(Record("run", 0, step, 0.0, Event.STEP, values)),
        detector.update(Record("run", 0, 5, 0.0, Event.METADATA, attributes=attributes)),
        detector.update(Record("run", 0, 6, 0.0, Event.METADATA)),
    ]
    found = [each for each in outputs if isinstance(each, Finding)]
    assert len(found) < 2
    return found[0] if found else None


@pytest.mark.parametrize(
    ("values", "text"),
    [
        ({"kl_ref": 0.06, "reward": 0.2}, "divergence from the reference is 0.06 and not 0"),
        ({"importance_ratio_mean": 0.97}, "probability ratio is 0.97 and not 1"),
        ({"ratio": 0.97, "reward": 0.2}, "probability ratio is 0.97 and not 1"),
    ],
)
def test_dropout_shows_in_the_first_values(values, text):
    found = finding(values)
    assert text in found.summary
    assert "Dropout of 0.1" in found.summary
    assert found.onset_step == 0


@pytest.mark.parametrize(
    "values",
    [
        {"kl_ref": 2e-4, "importance_ratio_mean": 1.0002},
        {"ratio": 0.97},
        {"kl_ref": 0.06},
        {"kl_ref": float("nan")},
        {"loss": 1.0},
    ],
)
def test_equal_probabilities_and_other_ratios_are_no_problem(values):
    assert finding(values) is None


def test_later_values_and_models_without_dropout_are_left_out():
    assert finding({"kl_ref": 0.06, "reward": 0.2}, step=2) is None
    assert finding({"kl_ref": 0.06, "reward": 0.2}, dropout="") is None
