"""Tests of the detector reward_collapse."""

from dataclasses import replace
from math import cos, exp, nan, pi, sqrt
from random import Random

import pytest
from support.seeds import SEEDS
from support.synthetic_runs import rl_run

from sentinel.detectors.reward_collapse import RewardCollapse
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, sigma=0.1, seed=0):
    rng = Random(seed)
    return [level + rng.gauss(0.0, sigma) for level in levels]


LEARNED = [min(1.0, t / 100) for t in range(200)]


def test_a_sudden_fall_is_found_within_seven_points_with_its_onset():
    record, finding = first_finding(RewardCollapse(), steps(reward=noisy(LEARNED + [-0.5] * 20)))

    assert 203 <= record.step <= 208
    assert abs(finding.onset_step - 201) <= 3
    assert finding.evidence["reward_before"] == pytest.approx(1.0, abs=0.15)


def severities(rewards):
    detector = RewardCollapse()
    outputs = [update_detector(detector, record) for record in steps(reward=rewards)]
    return [output.severity if isinstance(output, Finding) else Clear for output in outputs]


def test_a_loss_of_all_that_was_gained_is_critical_unless_it_turns():
    """The reward of a harder task rises again in the 48 rewards that decide."""
    stays = severities(noisy(LEARNED + [0.0] * 80))
    turns = severities(noisy(LEARNED + [t / 200 for t in range(400)]))

    assert 248 <= stays.index(Severity.CRITICAL) <= 256
    assert Severity.CRITICAL not in turns
    assert 200 <= turns.index(None, 200) <= 208
    assert turns[-1] is Clear


def test_a_loss_of_all_to_a_constant_is_critical_at_once():
    assert severities(noisy(LEARNED) + [0.0] * 20)[-1] is Severity.CRITICAL


def test_a_reward_that_turns_and_stops_short_is_critical():
    rises = [min(0.25, t / 400) for t in range(300)]

    assert Severity.CRITICAL in severities(noisy(LEARNED + rises))


def test_losing_a_third_is_a_warning():
    detector = RewardCollapse()
    outputs = [
        update_detector(detector, record) for record in steps(reward=noisy(LEARNED + [0.6] * 20))
    ]

    assert outputs[-1].severity is None


def test_a_slow_fall_is_found_by_its_depth():
    slow = LEARNED + [1.0 - t / 300 for t in range(300)]
    record, _ = first_finding(RewardCollapse(), steps(reward=noisy(slow)))

    assert record is not None


@pytest.mark.parametrize(("scale", "shift"), [(1.0, 0.0), (1000.0, 0.0), (0.001, 0.0), (1.0, -3.0)])
def test_the_unit_of_the_reward_does_not_matter(scale, shift):
    reward = [scale * (x + shift) for x in noisy(LEARNED + [-0.5] * 20)]
    record, _ = first_finding(RewardCollapse(), steps(reward=reward))

    assert 203 <= record.step <= 208


def test_a_dip_of_three_points_is_ignored():
    reward = noisy((LEARNED[150:] + [-1.0] * 3) * 6)

    assert first_finding(RewardCollapse(), steps(reward=reward)) == (None, None)


def test_a_saturated_reward_that_loses_a_hundredth_is_clear():
    reward = noisy([1.0] * 100 + [0.99] * 100, sigma=1e-4)

    assert first_finding(RewardCollapse(), steps(reward=reward)) == (None, None)


def test_ignores_non_finite_values():
    detector = RewardCollapse()

    assert [update_detector(detector, record) for record in steps(reward=[nan] * 100)] == [
        None
    ] * 100


def test_clears_when_the_reward_is_back():
    detector = RewardCollapse()
    reward = noisy(LEARNED + [0.0] * 20 + [1.0] * 40)
    outputs = [update_detector(detector, record) for record in steps(reward=reward)]

    assert outputs[-16:] == [Clear()] * 16


@pytest.mark.seeded
@pytest.mark.parametrize("severity", ["moderate", "severe"])
def test_detection_rates_match_the_docstring(severity):
    runs = [rl_run(seed, "reward_collapse", severity) for seed in SEEDS]
    found = [first_finding(RewardCollapse(), run.records())[0] for run in runs]

    late = [r is not None and r.step >= run.onset for r, run in zip(found, runs, strict=True)]
    assert sum(late) >= 28 / 30 * len(runs)


@pytest.mark.seeded
def test_healthy_runs_have_no_finding():
    runs = [rl_run(seed) for seed in SEEDS]

    assert (
        sum(first_finding(RewardCollapse(), run.records())[1] is not None for run in runs)
        <= len(runs) / 40
    )


def test_a_long_run_that_learns_nothing_has_no_finding():
    """Among ten thousand noisy points, some are far below the best one."""
    rng = Random(3)
    reward = [-1.8 + rng.gauss(0.0, 0.6) for _ in range(10_000)]

    assert first_finding(RewardCollapse(), steps(reward=reward)) == (None, None)


def test_a_smooth_rise_that_falls_by_half_and_recovers_is_a_collapse():
    """Rewards averaged over many episodes have hardly any noise and are never flat."""
    climb = [8000.0 * min(1.0, t / 41) ** 3 for t in range(46)]
    fall = [6900.0, 4600.0, 2800.0, 2900.0, 3900.0, 4900.0, 5900.0, 6900.0]
    reward = noisy(climb + fall + [8000.0] * 10, sigma=60.0)
    record, finding = first_finding(RewardCollapse(), steps(reward=reward))

    assert 49 <= record.step <= 54
    assert 46 <= finding.onset_step <= record.step


def test_a_reward_at_its_minimum_has_collapsed():
    reward = [-0.6, -0.7, -0.84, -0.91, -0.92, -0.94, -0.97, -0.98, -0.99] + [-1.0] * 20
    record, finding = first_finding(RewardCollapse(), steps(reward=reward))

    assert 16 <= record.step <= 17
    assert finding.evidence["reward_before"] == -0.92
    assert finding.evidence["reward_now"] == -1.0


def alarms(reward):
    """The severity of each alarm, the highest until it clears."""
    detector, found, is_open = RewardCollapse(), [], False
    for record in steps(reward=reward):
        output = update_detector(detector, record)
        is_finding = isinstance(output, Finding)
        if is_finding and not is_open:
            found.append(output.severity)
        if is_finding and output.severity is Severity.CRITICAL:
            found[-1] = output.severity
        is_open = is_finding
    return found


def test_a_reward_of_few_values_has_not_collapsed_by_chance():
    """Coins of many odds and batch sizes, won and lost or +-1, and sparse rewards."""
    runs = [few_values(10_000 + seed, 300) for seed in range(30)]

    assert [alarms(reward) for reward in runs] == [[]] * len(runs)


@pytest.mark.seeded
def test_a_thousand_coins_have_no_critical_finding():
    runs = [few_values(20_000 + seed) for seed in range(len(SEEDS) * 10)]
    found = [severity for reward in runs for severity in alarms(reward)]

    assert Severity.CRITICAL not in found
    assert len(found) <= max(1, 1e-5 * sum(map(len, runs)))


def test_a_take_off_is_no_fall():
    runs = [take_off(seed) for seed in range(20)]

    assert [alarms(reward) for reward in runs] == [[]] * len(runs)


def test_a_reward_of_few_values_that_is_lost_has_collapsed():
    rng = Random(1)
    reward = [float(rng.random() < 0.8) for _ in range(200)] + [0.0] * 60
    record, finding = first_finding(RewardCollapse(), steps(reward=reward))

    assert 207 <= record.step <= 240
    assert 196 <= finding.onset_step <= 203


def test_a_collapse_after_four_rewards_is_found_and_is_not_the_start():
    """Forty lines, each the mean of several steps."""
    reward = [0.9, 0.75, 0.95, 0.8, *noisy([0.03] * 36, sigma=0.01)]
    record, finding = first_finding(RewardCollapse(), steps(reward=reward))

    assert record.step <= 20
    assert 4 <= finding.onset_step <= 6
    assert finding.evidence["reward_before"] == pytest.approx(0.85, abs=0.02)
    assert finding.summary.startswith("Reward fell from 0.85 to 0.0")
    assert "started" not in finding.summary


def test_a_swing_that_always_comes_back_is_reported_twice_at_most():
    swing = [1.0 + 0.8 * cos(2 * pi * t / 60) for t in range(900)]

    assert len(alarms(noisy(swing))) <= 2


def test_the_onset_is_dated_within_two_points():
    near = 0
    for seed in range(20):
        reward = noisy(LEARNED + [0.2] * 20, seed=seed)
        _, finding = first_finding(RewardCollapse(), steps(reward=reward))
        near += abs(finding.onset_step - 201) <= 2

    assert near >= 18


def few_values(seed, length=0):
    """A coin, or the mean of a batch of coins, or a sparse reward, of 50 to 5,000 values."""
    rng = Random(seed)
    length, batch = length or int(50 * 100 ** rng.random()), rng.choice([1, 1, 2, 4, 16, 64])
    odds = rng.choice([rng.uniform(0.02, 0.98), 1 / 18 / batch])
    low, high = rng.choice([(0.0, 1.0), (-1.0, 1.0), (0.0, 1 / 18)])
    means = [sum(rng.random() < odds for _ in range(batch)) / batch for _ in range(length)]
    return [low + (high - low) * mean for mean in means]


def take_off(seed):
    """A logistic rise whose odds grow by the factor e in 1 to 20 points."""
    rng = Random(seed)
    length, points, batch = rng.randint(80, 300), 20 ** rng.random(), rng.choice([16, 64, 256])
    middle = length * rng.uniform(0.1, 0.9)
    odds = [0.1 + 0.6 / (1 + exp(min(50, (middle - t) / points))) for t in range(length)]
    return [rng.gauss(p, sqrt(p * (1 - p) / batch)) for p in odds]


def test_the_rise_before_a_collapse_in_a_short_log_is_no_noise():
    rising = [400.0 * (1.0 - exp(-i / 5)) for i in range(20)]
    for seed in range(1_000_000, 1_000_008):
        reward = noisy([*rising, *[30.0] * 20], 12.0, seed)
        record, _ = first_finding(RewardCollapse(), steps(reward=reward))

        assert record is not None, seed
        assert 21 <= record.step <= 32


def test_a_sparse_reward_has_not_collapsed_between_successes():
    reward = [0.0625 if t in {0, 3, 7, 22, 31, 60} else 0.0 for t in range(145)]

    assert first_finding(RewardCollapse(), steps(reward=reward)) == (None, None)


@pytest.mark.parametrize("seed", range(6))
def test_a_swing_that_comes_back_is_not_critical(seed):
    rng = Random(seed)
    period, share = rng.uniform(30, 80), rng.uniform(0.3, 0.85)
    levels = [
        min(1.0, t / 60) * (1 - share * (0.5 - 0.5 * cos(2 * pi * t / period))) for t in range(600)
    ]

    assert Severity.CRITICAL not in alarms(noisy(levels, sigma=0.05, seed=seed))


def test_a_loss_of_half_that_lasts_is_critical():
    assert alarms(noisy(LEARNED + [0.35] * 40)) == [None]
    assert alarms(noisy(LEARNED + [0.35] * 120)) == [Severity.CRITICAL]


def test_a_straight_recovery_has_turned():
    """Without noise, the slope has no standard error."""
    recovery = [t / 1000 for t in range(200)]

    assert alarms(noisy(LEARNED) + recovery) == [None]
    assert alarms(noisy(LEARNED) + [0.0] * 200) == [Severity.CRITICAL]


def rolling_means(episodes, count, per_record):
    """Means of the last 100 episodes, as a trainer logs them after every few."""
    ends = range(per_record, per_record * count + 1, per_record)
    return [sum(episodes[max(0, end - 100) : end]) / min(end, 100) for end in ends]


@pytest.mark.parametrize("per_record", [1, 4])
def test_a_rolling_mean_of_sparse_episodes_seldom_collapses_by_chance(per_record):
    """Its values repeat each other: counted as independent, 27 to 30 of 40 collapse."""
    found = 0
    for seed in range(1_000_000, 1_000_040):
        rng = Random(seed)
        episodes = [max(0.0, rng.gauss(-0.5, 1.0)) for _ in range(300 * per_record)]
        reward = rolling_means(episodes, 300, per_record)
        found += first_finding(RewardCollapse(), steps(reward=reward))[0] is not None

    assert found <= 20


def test_a_rolling_mean_that_loses_all_has_collapsed():
    for seed in range(1_000_000, 1_000_010):
        rng = Random(seed)
        episodes = [3.0 + rng.gauss(min(t / 100, 10.0), 1.0) for t in range(1200)]
        reward = rolling_means(episodes + [0.0] * 400, 400, per_record=4)[25:]
        record, _ = first_finding(RewardCollapse(), steps(reward=reward))

        assert 276 <= record.step <= 305, seed


def test_a_swing_ten_times_as_wide_at_an_equal_mean_is_no_fall():
    found = [0, 0]
    for seed in range(10):
        rng = Random(seed)
        swinging = [rng.gauss(0.5, 0.05 if t < 200 else 0.5) for t in range(400)]
        fallen = [rng.gauss(0.5 if t < 200 else 0.1, 0.05) for t in range(400)]

        found[0] += first_finding(RewardCollapse(), steps(reward=swinging))[0] is not None
        found[1] += first_finding(RewardCollapse(), steps(reward=fallen))[0] is not None
    assert found[0] <= 1
    assert found[1] == 10


def episode_means(rewards, added=4, length=20.0):
    """Records of the mean over the last 100 episodes, each with `added` new ones."""
    records = []
    for end in range(added, len(rewards) + 1, added):
        latest = rewards[max(0, end - 100) : end]
        values = {"reward": sum(latest) / len(latest), "rollout/ep_len_mean": length}
        [record] = steps(**{name: [value] for name, value in values.items()})
        key = {"reward": "rollout/ep_rew_mean"}
        records.append(replace(record, step=int(end * length), attributes=key))
    return records


def test_means_of_the_same_episodes_drift_with_fewer_falls():
    rng = Random(1)
    rare = [30.0 * (rng.random() < 0.01) + rng.random() for _ in range(8000)]

    def falls(key):
        detector, records = RewardCollapse(), episode_means(rare, added=1)
        outputs = [
            update_detector(detector, replace(each, attributes={"reward": key})) for each in records
        ]
        return len({each.onset_step for each in outputs if isinstance(each, Finding)})

    assert falls("rollout/ep_rew_mean") <= falls("reward") / 4


def test_means_of_the_last_episodes_that_fall_for_good_are_found():
    rng = Random(0)
    rewards = [level + rng.gauss(0.0, 20.0) for level in [200.0] * 6000 + [20.0] * 4000]
    record, finding = first_finding(RewardCollapse(), episode_means(rewards))

    assert 6000 * 20 < record.step < 6600 * 20
    assert finding.evidence["reward_now"] < 100.0


def test_two_lucky_episodes_at_the_start_are_no_level():
    rng = Random(0)
    reward = [4600.0, 7600.0, 500.0, *(rng.expovariate(1 / 350) for _ in range(60))]

    assert first_finding(RewardCollapse(), steps(reward=reward)) == (None, None)
