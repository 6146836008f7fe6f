"""Tests of the detector reward_stalled."""

from dataclasses import replace
from random import Random

from support.synthetic_runs import rl_run

from sentinel.detectors.reward_stalled import RewardStalled
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, steps, update_detector


def outputs(reward):
    detector = RewardStalled()
    return [update_detector(detector, record) for record in steps(reward=reward)]


def warnings(reward):
    return [x for x in outputs(reward) if hasattr(x, "severity") and x.severity is None]


def noise(count, sigma=0.6, seed=3, slope=0.0):
    rng = Random(seed)
    return [-1.8 + slope * t / count + rng.gauss(0.0, sigma) for t in range(count)]


def test_a_reward_that_is_hardly_ever_earned_is_a_warning():
    rng = Random(2)
    reward = [0.0625 if rng.random() < 0.1 else 0.0 for _ in range(200)]
    record, finding = first_finding(RewardStalled(), steps(reward=reward))

    assert 96 <= record.step <= 200
    assert finding.severity is None
    assert finding.onset_step == 1
    assert RewardStalled.severity is Severity.WARNING


def test_a_reward_that_is_earned_more_and_more_often_is_clear():
    rng = Random(1)
    reward = [float(rng.random() < 0.1 + t / 500) for t in range(400)]

    assert not warnings(reward)


def test_a_thousand_points_that_moved_by_less_than_half_the_noise_are_a_stall():
    assert warnings(noise(1200))


def test_half_that_many_points_are_no_warning_yet():
    assert not warnings(noise(600))


def test_a_rise_by_more_than_the_noise_is_clear():
    assert not warnings(noise(2000, slope=1.2))


def test_clear_while_the_policy_learns():
    assert outputs([t / 100 for t in range(200)])[-1] == Clear()


def test_healthy_runs_have_no_false_warning():
    runs = [rl_run(seed).series["reward"].tolist() for seed in range(500, 520)]

    assert not any(warnings(reward) for reward in runs)


def test_flat_rewards_past_half_of_the_planned_steps_are_a_stall():
    detector = RewardStalled()
    records = [event(Event.START, 0, max_steps=600.0), *steps(reward=noise(600))]
    found = [update_detector(detector, record) for record in records]
    first = next(n for n, x in enumerate(found) if isinstance(x, Finding) and x.severity is None)

    assert 300 < first < 450


def test_flat_rewards_at_the_end_of_a_run_are_a_stall():
    detector = RewardStalled()
    for record in steps(reward=noise(600)):
        update_detector(detector, record)
    finding = update_detector(detector, event(Event.STOP, 600))

    assert isinstance(finding, Finding)
    assert finding.severity is None


def test_a_short_or_rising_run_has_no_verdict_at_its_end():
    for reward in (noise(40), noise(300, slope=1.2)):
        detector = RewardStalled()
        for record in steps(reward=reward):
            update_detector(detector, record)

        assert not isinstance(update_detector(detector, event(Event.STOP, 300)), Finding)


def test_a_reward_that_rose_and_fell_again_is_no_stall():
    rise = [min(t, 400 - t) / 100 for t in range(400)]
    reward = [x + y for x, y in zip(rise, noise(400, sigma=0.3), strict=True)]
    found = [x for x in outputs([*reward, *noise(1000, sigma=0.3)]) if isinstance(x, Finding)]

    assert not [x for x in found if x.severity is None]


def test_healthy_runs_have_no_false_warning_past_half_or_at_the_end():
    for seed in range(600, 620):
        detector, run = RewardStalled(), rl_run(seed)
        reward = run.series["reward"].tolist()
        records = [event(Event.START, 0, max_steps=float(len(reward))), *steps(reward=reward)]
        found = [update_detector(detector, record) for record in records]
        found.append(update_detector(detector, event(Event.STOP, len(reward))))

        assert not [x for x in found if isinstance(x, Finding) and x.severity is None]


def test_solved_prompts_have_nothing_left_to_gain():
    rng = Random(3)
    rewards = [float(rng.random() < 0.99) for _ in range(1500)]

    assert not any(isinstance(output, Finding) for output in outputs(rewards))


def test_rewards_just_below_one_have_nothing_left_to_gain():
    rng = Random(5)
    rewards = [rng.gauss(0.945, 0.01) for _ in range(1100)]

    assert not any(isinstance(output, Finding) for output in outputs(rewards))
    assert warnings([0.4 + reward / 10 for reward in rewards])


def test_a_run_whose_samples_never_differ_is_judged_after_a_third_of_the_points():
    def step_found(**series):
        record, _ = first_finding(RewardStalled(), steps(**series))
        return record and record.step

    assert step_found(reward=[0.0] * 50, reward_std=[0.0] * 50) == 32
    assert step_found(reward=[0.0] * 50, reward_std=[0.0] * 49 + [0.1]) == 32
    assert step_found(reward=[0.0] * 50, reward_std=[0.1] + [0.0] * 49) is None
    assert step_found(reward=[1.0] * 50, reward_std=[0.0] * 50) is None
    assert step_found(reward=[0.0] * 50) is None


def test_a_decline_to_the_floor_by_a_twentieth_is_a_stall():
    rng = Random(4)
    rewards = [-96.0 - 4.0 * (t > 20 or rng.random() < 0.3) for t in range(150)]

    assert warnings(rewards)


def test_a_gain_that_is_shown_is_no_stall_however_noisy_single_rewards_are():
    """The mean rises by 45 within 2,000 values, which is less than half of the noise."""
    rng = Random(5)
    learned = [100.0 + min(45.0, t / 44) + rng.gauss(0.0, 120.0) for t in range(6000)]
    unlearned = [100.0 + rng.gauss(0.0, 120.0) for _ in range(6000)]

    assert not [x for x in outputs(learned)[4000:] if isinstance(x, Finding)]
    assert warnings(unlearned)


def test_the_remedy_of_a_game_names_no_completions():
    records = steps(reward=[0.0] * 100, epsilon=[0.5] * 100)

    _, finding = first_finding(RewardStalled(), records)

    assert "episode" in finding.remedy
    assert first_finding(RewardStalled(), steps(reward=[0.0] * 100))[1].remedy is None


def test_an_agent_that_still_acts_at_random_is_info():
    """The exploration rate falls to 0.5 after 1,500 of 2,000 rewards."""
    rewards = noise(2000)
    rate = [1.0 - t / 3000 for t in range(2000)]
    detector = RewardStalled()
    records = steps(reward=rewards, **{"rollout/exploration_rate": rate})
    found = [(r.step, o) for r in records if hasattr(o := update_detector(detector, r), "severity")]

    assert {o.severity for step, o in found if step < 1500} == {Severity.INFO}
    assert any(o.severity is None for step, o in found if step > 1500)


def is_warning_at_the_end(reward, outcome="finished"):
    detector = RewardStalled()
    for record in steps(reward=reward):
        update_detector(detector, record)
    stop = replace(event(Event.STOP, len(reward)), attributes={"outcome": outcome})
    finding = update_detector(detector, stop)
    return isinstance(finding, Finding) and finding.severity is None


def test_a_short_run_that_ends_without_a_gain_is_often_a_warning():
    found = [is_warning_at_the_end(noise(75, seed=seed)) for seed in range(60)]
    assert sum(found) >= 30


def test_a_short_run_that_gains_or_falls_is_none():
    for count in (50, 60, 75, 90):
        for slope in (1.5, 3.0, -3.0):
            for seed in range(15):
                assert not is_warning_at_the_end(noise(count, seed=seed, slope=slope))


def test_a_short_run_that_loses_its_gain_is_none():
    for seed in range(15):
        reward = [x + 2.0 * (10 <= at < 25) for at, x in enumerate(noise(60, seed=seed))]
        assert not is_warning_at_the_end(reward)


def test_fewer_than_48_rewards_are_not_enough():
    assert not any(is_warning_at_the_end(noise(47, seed=seed)) for seed in range(40))


def test_a_short_log_that_breaks_off_may_be_of_a_longer_run():
    assert not any(is_warning_at_the_end(noise(90, seed=seed), "unknown") for seed in range(40))


def test_a_policy_whose_entropy_never_changes_is_a_warning_whatever_its_luck():
    """The entropy of a uniform choice among 7 actions is ln 7."""
    rng = Random(4)
    lucky = [0.0] * 40 + [0.02 + 0.03 * rng.random() for _ in range(80)]
    learning = [1.9459 - 0.004 * at for at in range(120)]

    def found(entropy, reward):
        ended = replace(event(Event.STOP, len(reward)), attributes={"outcome": "finished"})
        records = [*steps(reward=reward, entropy=entropy), ended]
        return first_finding(RewardStalled(), records)[1]

    assert found([1.9459] * 120, lucky).severity is None
    assert found(learning, lucky) is None
    # A coarse entropy may stay the same for long while the reward rises.
    rising = [0.01 * at + rng.gauss(0.0, 0.05) for at in range(120)]
    assert found([1.38] * 120, rising) is None
