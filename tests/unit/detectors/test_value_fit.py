"""Tests of the detector value_fit."""

from dataclasses import replace

from sentinel.detectors.value_fit import ValueFit
from sentinel.model.finding import Clear, Severity
from sentinel.testing import first_finding, steps, update_detector


def test_a_value_model_that_has_not_learned_is_info():
    record, finding = first_finding(ValueFit(), steps(explained_variance=[-0.4] * 80))

    assert record.step == 64
    assert finding.severity is None
    assert finding.onset_step == 1
    assert ValueFit.severity is Severity.INFO


def test_a_value_model_that_improves_is_clear():
    learning = [-3.0 + 4.0 * min(1.0, t / 40) for t in range(100)]

    assert first_finding(ValueFit(), steps(explained_variance=learning)) == (None, None)


def test_clears_and_ignores_invalid_values():
    detector = ValueFit()
    explained = [-0.4] * 80 + [0.5] * 40 + [7.0]
    outputs = [update_detector(detector, r) for r in steps(explained_variance=explained)]

    assert outputs[-5:] == [Clear()] * 4 + [None]


def test_a_value_loss_that_grows_is_a_warning():
    losses = [0.05] * 100 + [5.0] * 40
    records = steps(value_loss=losses, reward=[0.6] * 140, completion_length=[200.0] * 140)
    record, finding = first_finding(ValueFit(), records)

    assert 100 < record.step < 110
    assert finding.signal == "value_loss"
    assert finding.severity is Severity.WARNING


def test_a_value_loss_is_clear_while_the_model_fits_or_the_reward_grows():
    losses = [0.05] * 100 + [5.0] * 40
    fits = steps(value_loss=losses, reward=[0.6] * 140, explained_variance=[0.9] * 140)
    grows = steps(value_loss=losses, reward=[0.6] * 100 + [6.0] * 40)

    assert first_finding(ValueFit(), fits) == (None, None)
    assert first_finding(ValueFit(), grows) == (None, None)


def test_a_fall_of_the_explained_variance_and_wider_advantages_are_info():
    falls = steps(explained_variance=[0.8] * 100 + [0.3] * 40)
    widens = steps(advantage_std=[1.0] * 100 + [9.0] * 40, reward=[0.6] * 140)

    assert first_finding(ValueFit(), falls)[1].signal == "explained_variance"
    assert first_finding(ValueFit(), widens)[1].signal == "advantage_std"


def episodes(q_value, reward, key="rollout/ep_rew_mean"):
    records = steps(q_value=q_value, reward=reward)
    return [replace(each, attributes={"reward": key}) for each in records]


def test_q_values_beyond_all_returns_are_a_warning():
    diverging = [1.5 ** min(at / 8, 20.0) for at in range(200)]
    record, finding = first_finding(ValueFit(), episodes(diverging, [100.0] * 200))

    assert 140 < record.step < 150
    assert finding.signal == "q_value"
    assert finding.severity is Severity.WARNING
    assert finding.summary.startswith("Relative to the largest reward, the q value is 1")


def test_q_values_that_learn_the_return_are_clear():
    learning = [90.0 * (1.0 - 0.97**at) for at in range(200)]
    diverging = [1.5 ** min(at / 8, 20.0) for at in range(200)]

    assert first_finding(ValueFit(), episodes(learning, [100.0] * 200)) == (None, None)
    # The reward of a step is far below the return of its episode.
    of_a_step = episodes(diverging, [100.0] * 200, key="reward_per_step")
    assert first_finding(ValueFit(), of_a_step) == (None, None)
