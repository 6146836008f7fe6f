"""Tests of the detector reward_zero_variance."""

from math import nan
from random import Random

import pytest

from sentinel.detectors.reward_zero_variance import RewardZeroVariance
from sentinel.model.finding import Clear, Finding, Severity
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


def severities(reward):
    """The severities of all findings where no spread is logged."""
    detector = RewardZeroVariance()
    records = steps(reward=reward, completion_length=[100.0] * len(reward))
    found = [update_detector(detector, record) for record in records]
    return {output.severity for output in found if isinstance(output, Finding)}


def test_a_sparse_reward_without_a_logged_spread_is_no_warning():
    """Most of its values are 0, and so equal, from the first to the last."""
    for seed in range(40):
        rng = Random(seed)
        odds = 0.005 * 16 ** rng.random()
        reward = [float(rng.random() < odds) for _ in range(rng.choice([100, 400, 1000]))]

        assert severities(reward) <= {Severity.INFO}


def test_equal_rewards_that_have_become_more_common_are_a_warning():
    rng = Random(4)
    reward = [float(rng.random() < 0.3) for _ in range(200)] + [0.0] * 60
    record, finding = first_finding(
        RewardZeroVariance(), steps(reward=reward, completion_length=[100.0] * 260)
    )

    assert 206 <= record.step <= 240
    assert None in severities(reward)
    assert "records the mean reward is that of the record before" in finding.summary


def test_rewards_that_differed_until_they_are_constant_are_a_warning():
    reward = [t / 100 + 0.3 for t in range(40)] + [0.0] * 30

    assert None in severities(reward)


def test_solved_prompts_are_info():
    reward = [t / 40 for t in range(40)] + [1.0] * 30
    records = steps(reward=reward, frac_zero_std=[0.1] * 40 + [1.0] * 30)
    _, finding = first_finding(RewardZeroVariance(), records)

    assert finding.severity is Severity.INFO


def test_one_poor_batch_among_solved_prompts_is_no_warning():
    reward = [0.7, 0.8, 0.9, 1.0] * 10 + [1.0, 1.0, 0.95, 1.0, 0.8] * 8
    records = steps(reward=reward, frac_zero_std=[0.4] * 40 + [0.95] * 40)
    detector = RewardZeroVariance()
    found = [update_detector(detector, record) for record in records]

    assert {x.severity for x in found if isinstance(x, Finding)} == {Severity.INFO}


def test_six_idle_points_at_the_floor_are_a_warning_with_their_onset():
    reward = VARIED * 10 + [0.3, 0.1, *[0.0] * 6]
    idle = [0.4, 0.6] * 20 + [0.5, 0.8, *[1.0] * 6]
    record, finding = first_finding(RewardZeroVariance(), steps(reward=reward, frac_zero_std=idle))

    assert record.step == 48
    assert finding.severity is None
    assert 42 <= finding.onset_range[0] <= 43 <= finding.onset_range[1] <= 44


def test_hard_prompts_are_often_idle_at_the_floor():
    """A third of the points are idle in every group by chance."""
    rng = Random(5)
    idle = [rng.choice([1.0, 0.25, 0.25]) for _ in range(2000)]
    reward = [0.0 if share == 1.0 else 0.0625 for share in idle]

    assert first_finding(RewardZeroVariance(), steps(reward=reward, frac_zero_std=idle)) == (
        None,
        None,
    )


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


def one_group_a_value(idle_shares, seed):
    rng = Random(seed)
    idle = [float(rng.random() < share) for share in idle_shares]
    return steps(reward=[rng.random() for _ in idle], frac_zero_std=idle)


@pytest.mark.parametrize("share", [0.5, 0.65, 0.75])
def test_idle_groups_in_a_row_are_chance_where_most_are_idle(share):
    for seed in range(20):
        records = one_group_a_value([share] * 500, seed)
        assert first_finding(RewardZeroVariance(), records) == (None, None)


@pytest.mark.parametrize(("share", "most"), [(0.0, 20), (0.2, 24), (0.5, 40), (0.7, 64)])
def test_groups_that_become_idle_are_found_by_their_share_before_and_stay_found(share, most):
    for seed in range(10):
        detector = RewardZeroVariance()
        records = list(one_group_a_value([share] * 200 + [1.0] * 300, seed))
        found = [isinstance(detector.update(record), Finding) for record in records]
        assert not any(found[:200])
        assert all(found[200 + most :])


def test_a_high_reward_that_never_varied_is_not_solved():
    reward = [0.88, 0.9, 0.85, 0.89] * 10
    records = steps(reward=reward, frac_zero_std=[1.0, 0.98] * 20)
    _, finding = first_finding(RewardZeroVariance(), records)

    assert finding.severity is None
