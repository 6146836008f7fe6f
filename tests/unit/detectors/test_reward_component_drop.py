"""Tests of the detector reward_component_drop."""

from random import Random

from sentinel.detectors.reward_component_drop import RewardComponentDrop
from sentinel.model.finding import Severity
from sentinel.testing import first_finding, steps


def components(correct_name="accuracy", *, later=0.1, well_formed=1.0, count=240):
    """Half way, correct answers fall and well-formed ones rise; the reward is their sum."""
    rng = Random(2)
    correct = [rng.gauss(0.5 if n < count / 2 else later, 0.05) for n in range(count)]
    form = [rng.gauss(0.3 if n < count / 2 else well_formed, 0.05) for n in range(count)]
    values = {f"rewards/{correct_name}/mean": correct, "rewards/format/mean": form}
    return steps(reward=[sum(pair) for pair in zip(correct, form, strict=True)], **values)


def test_correct_answers_that_fall_while_the_reward_rises_are_a_warning():
    record, finding = first_finding(RewardComponentDrop(), components())

    assert 120 < record.step < 150
    assert finding.severity is Severity.WARNING
    assert finding.evidence["component"] == "accuracy"
    assert finding.evidence["component_that_rose"] == "format"


def test_another_component_that_falls_is_info():
    _, finding = first_finding(RewardComponentDrop(), components("brevity"))

    assert finding.severity is None
    assert RewardComponentDrop.severity is Severity.INFO


def test_a_component_that_falls_with_the_reward_is_clear():
    assert first_finding(RewardComponentDrop(), components(well_formed=0.3)) == (None, None)


def test_components_that_rise_together_are_clear():
    assert first_finding(RewardComponentDrop(), components(later=0.8)) == (None, None)
