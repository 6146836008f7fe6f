"""Tests of the detector loss_divergence."""

from math import exp
from random import Random

import pytest
from support.faulty_series import loss_run
from support.seeds import SEEDS

from sentinel.detectors.loss_divergence import LossDivergence
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, sigma=0.05, seed=0):
    rng = Random(seed)
    return [level * exp(rng.gauss(0.0, sigma)) for level in levels]


FALLING = [1.0 + 2.0 * exp(-t / 30) for t in range(200)]


def detect(loss, **more):
    return first_finding(LossDivergence(), steps(loss=loss, **more))


def highest_severity(loss):
    detector = LossDivergence()
    outputs = [update_detector(detector, record) for record in steps(loss=loss)]
    return {f.severity for f in outputs if isinstance(f, Finding)}


def test_a_loss_that_rises_and_stays_is_a_warning_within_six_points():
    record, finding = detect(noisy(FALLING + [2.5] * 30))

    assert 203 <= record.step <= 206
    assert finding.severity is None
    assert finding.onset_step == 201


def test_it_is_critical_only_after_staying_as_high_as_untrained():
    assert highest_severity(noisy(FALLING + [1.4] * 60)) == {None}
    assert highest_severity(noisy(FALLING + [3.5] * 30)) == {None}
    assert highest_severity(noisy(FALLING + [3.5] * 60)) == {None, Severity.CRITICAL}


def test_a_harder_task_that_is_learned_is_no_more_than_a_warning():
    """The loss jumps to that of the untrained model and falls as it did at first."""
    learned = [1.0 + 2.0 * exp(-t / 30) for t in range(200)]

    assert highest_severity(noisy(FALLING + learned)) == {None}


def test_a_loss_that_turns_and_does_not_recover_is_critical_later():
    detector = LossDivergence()
    stuck = [max(1.7, 3.0 - t / 20) for t in range(200)]
    outputs = [update_detector(detector, record) for record in steps(loss=noisy(FALLING + stuck))]
    critical = [getattr(output, "severity", None) is Severity.CRITICAL for output in outputs]

    assert 290 <= critical.index(True) <= 305


def test_a_loss_that_recovers_within_three_points_is_no_divergence():
    assert detect(noisy(FALLING + [3.0] * 3 + [1.0] * 60)) == (None, None)


def test_harder_data_by_a_tenth_is_no_divergence():
    assert detect(noisy(FALLING + [1.1] * 200)) == (None, None)


def test_a_rise_in_the_first_steps_is_found_without_a_baseline():
    record, finding = detect([2.0, 2.1, 1.9, 2.0, 2.1, 2.0, 5.0, 7.0, 9.0, 9.5, 9.7])

    assert record.step == 11
    assert finding.onset_step == 7


def test_noisy_first_steps_are_clear():
    assert detect(noisy([11.0, 14.0, 10.0, 15.0, 9.0, 8.0, 7.0, *[6.0] * 40])) == (None, None)


def test_a_row_that_is_logged_twice_counts_once():
    """Four high losses, each logged twice, count as four."""
    loss = noisy(FALLING + [1.6] * 4 + [1.0] * 60)
    twice = [x for x in loss for _ in range(2)]

    assert detect(twice) == (None, None)


def test_a_policy_gradient_loss_has_no_level_to_rise_from():
    assert detect(noisy(FALLING + [9.0] * 60), reward=[1.0] * 260) == (None, None)


def test_a_policy_gradient_loss_that_rises_by_orders_of_magnitude_is_a_warning():
    rng = Random(1)
    loss = [rng.gauss(0.0, 0.05) for _ in range(100)] + [90.0, 800.0, 3e4, 5e6, 5e6]
    record, finding = detect(loss, reward=[1.0] * 105)

    assert record.step == 102
    assert finding.severity is None
    assert "101" in finding.summary


def signed(levels, seed):
    rng = Random(seed)
    return [level + rng.gauss(0.0, 0.1) for level in levels]


def test_a_loss_of_both_signs_diverges_once_half_of_its_fall_is_lost():
    fall = [0.5 - 1.5 * (1 - exp(-t / 30)) for t in range(200)]
    record, finding = detect(signed(fall + [0.2] * 40, 2))

    assert 203 <= record.step <= 210
    assert finding.evidence["usual_loss_before"] == pytest.approx(-1.0, abs=0.1)
    for seed in range(20):
        assert detect(signed(fall + [-0.6] * 40, seed)) == (None, None)


def test_a_falling_negative_loss_is_clear():
    assert detect([-x for x in noisy(FALLING + [9.0] * 60)]) == (None, None)


@pytest.mark.parametrize("before", [[6.9], [6.9, 6.5, 6.6], [7.0] * 10])
def test_a_log_of_a_few_lines_that_grows_by_orders_of_magnitude_is_critical(before):
    loss = [*before, 1e4, 5e9, 8e12]

    assert highest_severity(loss[:-1]) == {None}
    assert Severity.CRITICAL in highest_severity(loss)


def test_a_loss_that_no_training_recovers_from_is_critical_at_once():
    before = noisy([7.0] * 10)

    assert highest_severity([*before, 2e7]) == {Severity.CRITICAL}
    assert highest_severity([*before, 2e6]) == set()
    assert highest_severity([*before[:4], 2e7]) == set()


@pytest.mark.parametrize("loss", [[0.0, 2.3, 2.2, 2.1], [1e-4, 0.3, 0.3], [9.0, 2000.0, 8.0, 7.0]])
def test_a_log_of_a_few_lines_without_a_lasting_rise_is_clear(loss):
    assert detect(loss) == (None, None)


def test_no_level_is_stated_before_there_is_one():
    """Six values: five in a row above the first, before a start level of eight values."""
    _, finding = detect([2.0, 19.0, 19.1, 19.2, 19.08, 19.05])

    assert "level of 2 and" in finding.summary
    assert "at the start" not in finding.summary
    assert "loss_at_start" not in finding.evidence


def test_a_first_loss_that_is_low_by_chance_is_no_level():
    for seed in range(40):
        loss = noisy([2.0] * 30, 0.35, seed)
        loss[0] = 0.8
        assert detect(loss) == (None, None)


EARLY = [1.8, 1.7, 1.75, *noisy([7.5] * 20)]


def test_the_start_is_what_was_before_a_divergence_within_the_first_values():
    outputs = [update_detector(d, r) for d in [LossDivergence()] for r in steps(loss=EARLY)]

    assert outputs[-1].evidence["loss_at_start"] == pytest.approx(1.8)


def test_two_networks_trained_against_each_other_have_no_level():
    loss = noisy(FALLING + [3.5] * 60)

    assert detect(loss, g_loss=loss, d_loss=loss) == (None, None)


def test_it_clears_once_the_loss_is_back():
    detector = LossDivergence()
    outputs = [
        update_detector(detector, r) for r in steps(loss=noisy(FALLING + [2.0] * 20 + [1.0] * 40))
    ]

    assert isinstance(outputs[219], Finding)
    assert outputs[-1] == Clear()


@pytest.mark.seeded
@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_runs_have_no_false_warning(seed):
    assert first_finding(LossDivergence(), loss_run(seed).records()) == (None, None)


@pytest.mark.parametrize(("severity", "within"), [("severe", 20), ("moderate", 60)])
def test_every_doubled_loss_is_found(severity, within):
    for seed in range(100, 115):
        run = loss_run(seed, "loss_divergence", severity)
        record, _ = first_finding(LossDivergence(), run.records())
        assert record is not None, seed
        assert run.onset <= record.step <= run.onset + within * run.every, seed


def test_a_loss_that_loses_half_of_its_fall_diverges_if_the_held_out_loss_rises_too():
    loss = noisy([4.4 - 1.1 * (1 - 0.9**t) for t in range(150)] + [4.0] * 60, sigma=0.01)
    fallen = first_finding(LossDivergence(), steps(loss=loss, eval_loss=loss))
    assert 154 <= fallen[0].step <= 180

    fine = [min(x, 3.4) for x in loss]
    assert first_finding(LossDivergence(), steps(loss=loss, eval_loss=fine)) == (None, None)
    assert first_finding(LossDivergence(), steps(loss=loss)) == (None, None)
    a_third = [x - 0.35 * (t >= 150) for t, x in enumerate(loss)]
    found = first_finding(LossDivergence(), steps(loss=a_third, eval_loss=a_third))
    assert found == (None, None)


def test_a_slow_rise_that_the_held_out_loss_shares_is_found():
    """The recent level follows a loss that rises by 5 % a value from its fifth value on."""
    loss = noisy([1.0, 0.6, 0.4, 0.3] + [0.25 * 1.05 ** min(t, 30) for t in range(60)], 0.02)
    held_out = [1.2 * value for value in loss]

    record, finding = detect(loss, eval_loss=held_out)

    assert record.step <= 30
    assert finding.onset_step <= 16
    alone, _ = detect(loss)
    assert alone.step > record.step


def test_a_loss_close_to_zero_that_stays_there_is_info():
    fall = [3.0 * exp(-t / 10) + 0.01 for t in range(300)]

    assert highest_severity(noisy(fall + [0.03] * 80)) == {Severity.INFO}
    assert highest_severity(noisy(fall + [0.5] * 80)) >= {None}


def test_a_loss_that_nothing_bounds_from_below_is_found():
    """Its magnitude grows in steps too small for a runaway, and it falls all the time."""
    loss = [2.0] * 10 + [2.0 - 1.1**t for t in range(400)]
    record, finding = detect(loss)

    assert finding.summary.startswith("Loss fell to -2.")
    assert finding.evidence["loss"] < -1e6 * finding.evidence["largest_loss_at_start"]
    assert finding.onset_step == record.step - 1
    assert "maximised" in finding.remedy


def test_a_log_likelihood_that_falls_far_below_zero_is_bounded():
    assert detect([4.0 - 900.0 * t / (t + 40) for t in range(400)]) == (None, None)


def test_a_loss_that_is_back_at_its_level_has_not_risen():
    """A few losses far out are evidence of a rise that the others do not show."""
    rng = Random(5)
    loss = noisy([3.0 * exp(-t / 30) + 0.3 for t in range(300)])
    far_out = [x * (8.0 if t > 250 and t % 6 == 0 else 1.0) for t, x in enumerate(loss)]
    detector = LossDivergence()
    for record in steps(loss=[x * exp(rng.gauss(0.0, 0.2)) for x in far_out]):
        output = update_detector(detector, record)
        if isinstance(output, Finding):
            assert output.evidence["loss_median_of_8"] > output.evidence["usual_loss_before"]


def test_a_loss_beside_rewards_in_rows_of_their_own_is_one_of_a_policy():
    """The error of a Q-function grows as returns are found."""
    losses = noisy([0.6] * 40 + [25.0] * 100)
    together = [
        record for loss in losses for record in (*steps(loss=[loss]), *steps(reward=[-50.0]))
    ]
    detector, alone = LossDivergence(), LossDivergence()

    assert not any(isinstance(update_detector(detector, each), Finding) for each in together)
    assert any(isinstance(update_detector(alone, each), Finding) for each in steps(loss=losses))
