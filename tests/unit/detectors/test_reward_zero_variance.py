"""Tests of the detector reward_zero_variance."""

from math import nan

import pytest

from sentinel.detectors.reward_zero_variance import RewardZeroVariance
from sentinel.model.finding import Clear, Severity
from sentinel.testing import first_finding, steps, update_detector

VARIED = [0.2, 0.3, 0.25, 0.4]


def test_sixteen_points_of_equal_rewards_are_a_warning():
    idle = [0.2] * 40 + [1.0] * 20
    records = steps(reward=VARIED * 15, frac_zero_std=idle)
    record, finding = first_finding(RewardZeroVariance(), records)

    assert 54 <= record.step <= 56
    assert finding.severity is None
    assert 39 <= finding.onset_step <= 41
    assert RewardZeroVariance.severity is Severity.WARNING


def test_a_run_that_never_varied_needs_twice_as_many_points():
    records = steps(reward=[0.0, 0.0625] * 30, frac_zero_std=[1.0] * 60)
    record, finding = first_finding(RewardZeroVariance(), records)

    assert record.step == 32
    assert finding.onset_step == 1


def test_a_standard_deviation_of_zero_is_no_variance():
    records = steps(reward=[-1.0] * 60, reward_std=[0.0] * 60)

    assert first_finding(RewardZeroVariance(), records)[0].step == 32


def test_equal_mean_rewards_count_if_no_spread_is_logged():
    records = steps(reward=[-0.5, *[-1.0] * 60], completion_length=[1.0] * 61)

    assert first_finding(RewardZeroVariance(), records)[0] is not None


def test_solved_prompts_are_info():
    reward = [t / 40 for t in range(40)] + [1.0] * 30
    records = steps(reward=reward, frac_zero_std=[0.1] * 40 + [1.0] * 30)
    _, finding = first_finding(RewardZeroVariance(), records)

    assert finding.severity is Severity.INFO


@pytest.mark.parametrize("idle", [[0.8] * 100, [1.0, 0.5] * 50, ([1.0] * 7 + [0.0]) * 12])
def test_four_in_five_idle_groups_are_clear(idle):
    records = steps(reward=(VARIED * 25)[: len(idle)], frac_zero_std=idle)

    assert first_finding(RewardZeroVariance(), records) == (None, None)


def test_a_constant_reward_of_a_control_task_is_not_evaluated():
    """It has no groups of completions."""
    assert first_finding(RewardZeroVariance(), steps(reward=[-200.0] * 100)) == (None, None)


def test_clears_when_answers_differ_again():
    detector = RewardZeroVariance()
    records = steps(reward=VARIED * 15, frac_zero_std=[1.0] * 40 + [0.2] * 20)

    assert [update_detector(detector, record) for record in records][-16:] == [Clear()] * 16


def test_values_outside_0_to_1_are_ignored():
    detector = RewardZeroVariance()
    records = steps(reward=VARIED * 10, frac_zero_std=[nan, 7.0] * 20)

    assert [update_detector(detector, record) for record in records] == [None] * 40
