"""Tests of the detector likelihood_displacement."""

from sentinel.detectors.likelihood_displacement import LikelihoodDisplacement
from sentinel.testing import first_finding, steps

FALLING = [0.1] * 60 + [-8.0] * 60


def test_a_chosen_reward_that_falls_while_the_margin_grows_is_found():
    records = steps(reward_chosen=FALLING, reward_margin=[0.5] * 60 + [4.0] * 60)
    record, finding = first_finding(LikelihoodDisplacement(), records)

    assert 60 < record.step <= 72
    assert finding.onset_step == 61


def test_a_fall_without_a_margin_is_clear():
    records = steps(reward_chosen=FALLING, reward_margin=[0.5] * 120)

    assert first_finding(LikelihoodDisplacement(), records) == (None, None)


def test_a_usual_fall_is_clear():
    chosen = [0.1 - n / 60 for n in range(120)]
    records = steps(reward_chosen=chosen, reward_margin=[n / 20 for n in range(120)])

    assert first_finding(LikelihoodDisplacement(), records) == (None, None)
