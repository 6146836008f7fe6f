"""Tests of the detector loss_spike."""

from copy import deepcopy
from math import exp
from random import Random

import pytest
from support.faulty_series import loss_run
from support.notable_findings import first_notable
from support.seeds import SEEDS

from sentinel.detectors.loss_spike import LossSpike
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, sigma=0.03, seed=0):
    rng = Random(seed)
    return [level * exp(rng.gauss(0.0, sigma)) for level in levels]


def detect(loss, **more):
    return first_finding(LossSpike(), steps(loss=loss, **more))


def detect_notable(records):
    return first_notable(LossSpike(), records)


def test_two_losses_of_three_at_over_twice_the_usual_are_a_warning():
    record, finding = detect_notable(steps(loss=noisy([2.0] * 50 + [5.0, 2.0, 5.0] + [2.0] * 20)))

    assert record.step == 53
    assert finding.onset_step == 51


def test_one_bad_batch_is_info():
    record, finding = detect(noisy([2.0] * 50 + [9.0] + [2.0] * 20))

    assert record.step == 51
    assert finding.severity is Severity.INFO
    assert detect_notable(steps(loss=noisy([2.0] * 50 + [9.0] + [2.0] * 20))) == (None, None)


def test_two_jumps_by_less_than_twofold_are_info():
    record, finding = detect(noisy([2.0] * 50 + [3.0, 3.0] + [2.0] * 20))

    assert record.step == 52
    assert finding.severity is Severity.INFO


def test_jumps_within_the_noise_are_ignored():
    assert detect(noisy([2.0] * 400, sigma=0.3)) == (None, None)


def test_a_jump_in_the_first_steps_is_ignored():
    assert detect([*noisy([2.0] * 10), 9.0, 9.0, 9.0]) == (None, None)


def test_a_bad_batch_that_is_logged_twice_counts_once():
    loss = [x for x in noisy([2.0] * 50 + [9.0] + [2.0] * 20) for _ in range(2)]

    assert detect_notable(steps(loss=loss)) == (None, None)


def joint(loss, norm):
    return detect_notable(steps(loss=noisy(loss, 0.05, 1), grad_norm=noisy(norm, 0.2, 2)))


def test_two_small_jumps_of_loss_and_gradient_together_are_a_warning():
    record, finding = joint([2.0] * 50 + [2.9, 2.8] + [2.0] * 20, [1.0] * 50 + [4.0] * 2 + [1] * 20)

    assert record.step == 52
    assert finding.onset_step == 51
    assert "gradient norm" in finding.summary


@pytest.mark.parametrize(
    ("loss", "norm"),
    [
        ([2.0] * 50 + [2.9, 2.8] + [2.0] * 20, [1.0] * 72),
        ([2.0] * 72, [1.0] * 50 + [4.0] * 2 + [1] * 20),
        ([2.0] * 50 + [2.9] + [2.0] * 21, [1.0] * 50 + [4.0] + [1] * 21),
        ([5.0] * 3 + [0.2] * 50 + [0.29, 0.28] + [0.2] * 20, [1.0] * 53 + [4.0] * 2 + [1] * 20),
    ],
    ids=["loss alone", "gradient alone", "one value", "tiny loss of a memorised run"],
)
def test_evidence_of_one_signal_or_of_one_value_is_no_warning(loss, norm):
    assert joint(loss, norm) == (None, None)


def test_joint_evidence_needs_no_loss_far_out_of_a_wide_band():
    losses, norms = noisy([2.0] * 60 + [3.0] * 4, 0.3, 1), noisy([1.0] * 60 + [9.0] * 4, 0.2, 2)
    record, finding = detect_notable(steps(loss=losses, grad_norm=norms))

    assert record.step == 62
    assert 61 <= finding.onset_step <= 62


def policy_loss(seed, count=100):
    rng = Random(seed)
    return [rng.gauss(0.0, 0.1) + (rng.random() < 0.02) * rng.uniform(-2, 2) for _ in range(count)]


def test_a_policy_gradient_loss_that_jumps_by_orders_of_magnitude_is_a_warning():
    loss = policy_loss(0)
    loss[80] = -3668.0
    record, finding = detect_notable(steps(loss=loss, reward=[1.0] * 100))

    assert record.step == 81
    assert finding.evidence["largest_recent_deviation"] < 3


def test_noise_of_a_policy_gradient_loss_is_no_warning():
    for seed in range(20):
        loss = policy_loss(seed)
        assert detect_notable(steps(loss=loss, reward=[1.0] * 100)) == (None, None)


def test_the_loss_of_a_policy_that_is_far_from_0_spikes_like_any_other():
    rng = Random(0)
    loss = [rng.gauss(1.25, 0.03) for _ in range(60)]

    assert detect_notable(steps(loss=[*loss, 3.4, 1.26], reward=[1.0] * 62)) == (None, None)
    assert detect_notable(steps(loss=[*loss, 3.4, 2.5], reward=[1.0] * 62))[0].step == 62
    near = [x - 1.2 for x in loss]
    assert detect_notable(steps(loss=[*near, 2.2, 1.3], reward=[1.0] * 62)) == (None, None)


def test_a_loss_of_both_signs_is_compared_with_its_own_deviations():
    rng = Random(0)
    loss = [rng.gauss(-0.2, 0.1) for _ in range(60)]

    assert detect([*loss, 2.0])[1].severity is Severity.INFO
    assert detect_notable(steps(loss=[*loss, 2.0, 1.9]))[0].step == 62
    assert detect(loss) == (None, None)


def test_it_clears_at_the_first_loss_within_the_band():
    detector = LossSpike()
    outputs = [
        update_detector(detector, r) for r in steps(loss=noisy([2.0] * 50 + [9.0] * 3 + [2.0]))
    ]

    assert isinstance(outputs[-2], Finding)
    assert outputs[-1] == Clear()


@pytest.mark.seeded
@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_runs_have_no_false_warning(seed):
    assert detect_notable(loss_run(seed).records()) == (None, None)


def test_every_fourfold_jump_is_found_at_once():
    for seed in range(100, 115):
        run = loss_run(seed, "loss_spike", "severe")
        record, _ = detect_notable(run.records())
        assert record is not None, seed
        assert run.onset <= record.step <= run.onset + 5 * run.every, seed


def test_the_highest_loss_of_a_spike_is_stated():
    rng = Random(1)
    usual = [exp(rng.gauss(0.0, 0.03)) for _ in range(60)]
    detector = LossSpike()
    outputs = [update_detector(detector, r) for r in steps(loss=[*usual, 4.5, 2.5])]

    assert "Loss jumped to 4.5 and is 2.5 now" in outputs[-1].summary


def test_the_threshold_is_what_a_single_loss_has_to_exceed():
    detector = LossSpike()
    losses = [2.0 + at % 3 / 100 for at in range(200)]
    outputs = [detector.update(each) for each in steps(loss=losses)]
    threshold = outputs[-1].threshold
    for factor, kind in ((0.98, Clear), (1.02, Finding)):
        single = deepcopy(detector)
        (record,) = steps(loss=[factor * threshold])
        assert isinstance(single.update(record), kind)


def test_jumps_of_a_loss_that_is_close_to_zero_are_info():
    fall = [4.0 * exp(-t / 15) + 0.006 for t in range(250)]
    slight, large = ([*fall, jump, jump, *[0.006] * 20] for jump in (0.04, 0.6))

    record, finding = detect(noisy(slight))
    assert (record.step, finding.severity) == (251, Severity.INFO)
    assert detect_notable(steps(loss=noisy(slight))) == (None, None)
    assert detect_notable(steps(loss=noisy(large)))[1].onset_step == 251
