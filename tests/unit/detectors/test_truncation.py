"""Tests of the detector truncation."""

from random import Random

from support.logged_faults import LENGTH_REWARDS, LENGTH_TRUNCATED

from sentinel.detectors.truncation import Truncation
from sentinel.model.finding import Clear, Severity
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, sigma=0.1, seed=0):
    rng = Random(seed)
    return [level + rng.gauss(0.0, sigma) for level in levels]


def highest_severity(cut, reward):
    detector = Truncation()
    seen = [update_detector(detector, r) for r in steps(truncated_fraction=cut, reward=reward)]
    severities = [x.severity or Truncation.severity for x in seen if hasattr(x, "severity")]
    return min(severities, key=lambda severity: severity.order, default=None)


def test_most_answers_cut_with_no_higher_reward_is_a_warning():
    cut = [0.6] * 10 + [0.95] * 20
    records = steps(truncated_fraction=cut, reward=noisy([0.5] * 30))
    record, finding = first_finding(Truncation(), records)

    assert record.step == 8
    assert finding.severity is None
    assert highest_severity(cut, noisy([0.5] * 30)) is Severity.WARNING


def test_truncation_since_the_start_is_info_until_the_reward_has_not_risen_for_long():
    assert highest_severity([0.95] * 60, noisy([0.5] * 60)) is Severity.INFO
    assert highest_severity([0.95] * 80, noisy([0.5] * 80)) is Severity.WARNING
    assert highest_severity([0.75] * 80, noisy([0.5] * 80)) is Severity.INFO


def test_truncation_with_a_higher_reward_is_info_at_first():
    cut = [0.1] * 20 + [0.95] * 16

    assert highest_severity(cut, noisy([0.0] * 20 + [3.0] * 16)) is Severity.INFO


def test_most_answers_cut_for_long_is_a_warning_whatever_the_reward_does():
    """A reward of the length rises until all are cut off."""
    cut = [0.1, 0.3, 0.2, 0.2, 0.4, 0.5, 0.4, 0.7, 0.8, 0.9, *[1.0] * 50]
    reward = [min(48.0, 30.0 + 1.8 * at) for at in range(60)]
    records = list(steps(truncated_fraction=cut, reward=reward))
    detector = Truncation()
    outputs = [(record, update_detector(detector, record)) for record in records]
    warned = [(r.step, x) for r, x in outputs if getattr(x, "severity", None) is Severity.WARNING]

    assert warned[0][0] == 32
    assert warned[-1][1].summary.endswith(
        "at the start it was 20%. The reward rises all the same, from 36.3 to 48."
    )
    assert highest_severity(cut, [float("nan")] * 60) is Severity.WARNING


def test_a_policy_that_is_rewarded_for_length_is_found_at_the_thirty_second_record():
    records = steps(truncated_fraction=LENGTH_TRUNCATED, reward=LENGTH_REWARDS)
    detector = Truncation()
    outputs = [(record.step, update_detector(detector, record)) for record in records]
    warned = [step for step, x in outputs if getattr(x, "severity", None) is Severity.WARNING]

    assert warned == list(range(32, 41))


def test_a_limit_that_is_small_on_purpose_is_info():
    """All completions are cut off from the first step on, and the reward is learnt."""
    rewards = noisy([at / 200 for at in range(200)])

    assert highest_severity([1.0] * 200, rewards) is Severity.INFO


def test_long_reasoning_that_is_cut_off_in_part_is_no_warning():
    """A tenth, then a third of the completions reach the limit while the reward rises."""
    cut = noisy([0.05 + 0.3 * at / 200 for at in range(200)], 0.03)

    assert highest_severity(cut, noisy([at / 200 for at in range(200)])) in {None, Severity.INFO}


def test_a_fifth_is_clear():
    assert highest_severity(noisy([0.2] * 60, 0.02), noisy([0.5] * 60)) is None


def test_clears_when_completions_end_and_ignores_invalid_values():
    detector = Truncation()
    cut = [0.9] * 20 + [0.0] * 20 + [7.0]
    outputs = [update_detector(detector, record) for record in steps(truncated_fraction=cut)]

    assert outputs[-5:] == [Clear()] * 4 + [None]
