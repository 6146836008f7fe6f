"""Tests of the detector loss_never_moved."""

from dataclasses import replace
from math import exp, log
from random import Random

import pytest
from support.faulty_series import loss_run
from support.seeds import SEEDS

from sentinel.detectors.loss_never_moved import LossNeverMoved
from sentinel.model.finding import Clear, Finding
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, steps, update_detector


def noisy(levels, sigma=0.03, seed=0):
    rng = Random(seed)
    return [level * exp(rng.gauss(0.0, sigma)) for level in levels]


def detect(loss, **more):
    return first_finding(LossNeverMoved(), steps(loss=loss, **more))


def stuck(seed):
    """The noise of a synthetic run on a constant loss."""
    run = loss_run(seed)
    run.series["loss"] = run.series["loss"] / run.truth * run.truth[0]
    return run


def test_a_loss_constant_since_the_first_step_is_a_warning():
    record, finding = detect(noisy([7.6] * 300))

    assert 160 <= record.step <= 200
    assert finding.severity is None
    assert finding.onset_step == 1
    assert "guessing" not in finding.summary


def test_a_loss_that_fell_at_once_has_moved():
    assert detect(noisy([3.0, 2.5, 2.0, 1.7, 1.5] + [1.4] * 600)) == (None, None)


def test_a_loss_that_falls_slowly_has_moved():
    assert detect(noisy([3.0 * exp(-t / 2000) for t in range(600)])) == (None, None)


def test_a_loss_that_reached_only_chance_level_is_named():
    loss = noisy([1.2 * exp(-t / 20) + log(2) for t in range(800)])
    _, finding = detect(loss)

    assert "ln 2" in finding.summary


@pytest.mark.parametrize(
    ("setting", "count"), [("num_classes", 7), ("num_labels", 20), ("vocab_size", 50257)]
)
def test_a_loss_that_settles_at_that_of_all_classes_alike_is_named(setting, count):
    start, falling = event(Event.START, 0, **{setting: float(count)}), noisy([1.2] * 800)
    settled = [(1.0 + 0.3 * exp(-t / 20)) * log(count) for t in range(800)]
    learned = [level * log(count) * exp(-t / 500) for t, level in enumerate(falling)]
    found = [
        first_finding(LossNeverMoved(), [*begin, *steps(loss=loss)])[1]
        for begin, loss in (
            ([start], noisy(settled, 0.01)),
            ([], noisy(settled, 0.01)),
            ([start], learned),
            # Two of them alike are no guess of all.
            ([start], noisy([1.2 * exp(-t / 20) + log(2) for t in range(800)])),
        )
    ]

    assert f"ln {count} is the loss of random guessing" in found[0].summary
    assert found[1:] == [None] * 3


def test_noise_that_could_hide_a_fall_is_not_evaluated():
    assert detect(noisy([1.0] * 160, sigma=0.5)) == (None, None)


def test_nothing_is_found_during_a_warm_up():
    warming = [1e-6 * (t + 1) for t in range(300)]

    assert detect(noisy([2.0] * 300), learning_rate=warming) == (None, None)


def test_nothing_is_found_in_the_first_tenth_of_a_long_run():
    def of(length):
        yield event(Event.START, 0, max_steps=length)
        yield from steps(loss=noisy([2.0] * 400))

    assert first_finding(LossNeverMoved(), of(10_000.0)) == (None, None)
    assert first_finding(LossNeverMoved(), of(2_000.0))[0] is not None


def test_a_policy_gradient_loss_is_not_evaluated():
    assert detect(noisy([2.0] * 400), reward=[1.0] * 400) == (None, None)


def test_it_clears_once_the_loss_has_moved():
    detector = LossNeverMoved()
    loss = noisy([2.0] * 200 + [2.0 * exp(-t / 200) for t in range(400)])
    outputs = [update_detector(detector, record) for record in steps(loss=loss)]

    assert any(isinstance(output, Finding) for output in outputs[:250])
    assert outputs[-1] == Clear()


@pytest.mark.seeded
@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_runs_have_no_false_warning(seed):
    assert first_finding(LossNeverMoved(), loss_run(seed).records()) == (None, None)


@pytest.mark.seeded
def test_nearly_all_runs_that_learn_nothing_are_found():
    runs = [stuck(seed) for seed in SEEDS]
    long_enough = [run for run in runs if len(run) >= 300]
    found = [first_finding(LossNeverMoved(), run.records())[0] for run in long_enough]

    assert sum(record is not None for record in found) >= 0.8 * len(found)


def coarse(loss, **more):
    return first_finding(LossNeverMoved(), steps(loss=loss, first=50, every=50, **more))


def test_fifty_lines_of_means_that_say_the_same_suffice():
    record, finding = coarse(noisy([1.4] * 50, sigma=0.01))

    assert record.step <= 48 * 50
    assert finding.onset_step == 50


def test_fifty_lines_of_single_steps_need_an_evaluation_that_is_as_flat():
    loss = noisy([1.4] * 50, sigma=0.01)
    every_fifth = [(1.386 if t % 5 == 4 else None) for t in range(50)]

    assert detect(loss) == (None, None)
    assert detect(loss, eval_loss=every_fifth)[0].step <= 48


def test_a_first_line_is_no_progress_if_the_held_out_loss_never_fell():
    """A loss that falls to chance within the first epoch, which is its first line."""
    loss = [2.45, *noisy([2.303] * 49, sigma=0.001)]

    assert detect(loss) == (None, None)
    assert detect(loss, eval_loss=[2.304] * 50)[0] is not None


def test_fifty_lines_that_fall_by_five_per_cent_have_moved():
    for seed in range(20):
        loss = noisy([1.4 * (1 - 0.05 * t / 50) for t in range(50)], sigma=0.01, seed=seed)
        assert coarse(loss) == (None, None)


def test_a_loss_whose_accuracy_rises_is_learning():
    accuracy = [0.5 + 0.2 * t / 300 for t in range(300)]

    assert detect(noisy([0.69] * 300, sigma=0.005), eval_accuracy=accuracy) == (None, None)
    assert detect(noisy([0.69] * 300, sigma=0.005), eval_accuracy=[0.5] * 300)[0] is not None


def test_a_resumed_run_is_not_evaluated_since_its_start_is_not_in_the_log():
    records = steps(loss=noisy([2.0] * 300), first=10_000)

    assert first_finding(LossNeverMoved(), records) == (None, None)


def test_another_training_of_a_run_is_evaluated_from_its_first_step():
    records = [event(Event.TRAINING, 600), *steps(loss=noisy([2.0] * 300), first=601)]
    record, finding = first_finding(LossNeverMoved(), records)

    assert 760 <= record.step <= 800
    assert finding.onset_step == 601


def test_a_loss_over_pairs_that_leaves_ln_2_at_its_second_step_is_found():
    """DPO at a thousand times its rate."""
    _, finding = detect([log(2), 0.78, *noisy([2.5] * 400, sigma=0.9)])

    assert finding.summary.startswith("Loss is not below ln 2 = 0.693")


def test_a_loss_over_pairs_that_stays_above_ln_2_is_found_although_it_varies():
    loss = [1.1 if t % 60 == 0 else x for t, x in enumerate(noisy([0.7] * 300, sigma=0.1))]
    _, finding = detect(loss, preference_accuracy=[0.5] * 300)

    assert finding.summary.startswith("Loss is not below ln 2 = 0.693")


def test_a_loss_over_pairs_that_falls_slowly_below_ln_2_is_not():
    loss = noisy([0.69 - 0.08 * t / 300 for t in range(300)], sigma=0.1)

    assert detect(loss, preference_accuracy=[0.5] * 300) == (None, None)


def test_a_flat_loss_of_both_signs_is_found_if_its_fall_is_not_significant():
    rng = Random(3)
    flat = [rng.gauss(0.001, 0.02) for _ in range(300)]
    falling = [x - 0.05 * t / 300 for t, x in enumerate(flat)]

    assert "Loss does not fall significantly" in detect(flat)[1].summary
    assert detect(falling) == (None, None)


def test_a_loss_of_both_signs_that_falls_by_orders_of_magnitude_has_moved():
    """The last values outweigh a straight line through all, and their ranks do not."""
    rng = Random(11)
    falling = [3.0 - 1.06**t * exp(rng.gauss(0.0, 1.5)) for t in range(300)]
    scattered = [rng.choice((-1.0, 1.0)) * exp(rng.gauss(3.0, 3.0)) for _ in range(300)]

    assert detect(falling) == (None, None)
    assert "Loss does not fall significantly" in detect(scattered)[1].summary


def test_two_networks_trained_against_each_other_are_not_evaluated():
    losses = {"loss": noisy([1.386] * 300), "loss/generator": [0.7] * 300, "d_loss": [1.38] * 300}

    assert first_finding(LossNeverMoved(), steps(**losses)) == (None, None)


def test_a_loss_that_swings_at_a_high_rate_without_progress_is_found():
    rng = Random(7)
    swinging = [max(0.1, rng.gauss(6.0, 2.5)) for _ in range(200)]
    falling = [x * exp(-t / 200) for t, x in enumerate(swinging)]

    assert detect(swinging, learning_rate=[0.02] * 200)[1] is not None
    assert detect(swinging, learning_rate=[2e-4] * 200) == (None, None)
    assert detect(falling, learning_rate=[0.02] * 200) == (None, None)


def drifting(count, sigma, seed, total_fall=0.0):
    """A loss that falls by a share of itself over the run, with noise correlated by 0.3."""
    rng, noise, losses = Random(seed), 0.0, []
    for t in range(count):
        noise = 0.3 * noise + rng.gauss(0.0, 0.95 * sigma)
        losses.append(2.3 * (1 - total_fall * t / count) * exp(noise))
    return losses


@pytest.mark.parametrize(("count", "sigma"), [(300, 0.09), (1000, 0.15)])
def test_noise_hides_no_loss_that_never_moved(count, sigma):
    flat = [detect(drifting(count, sigma, seed))[0] for seed in range(10)]
    falling = [detect(drifting(count, sigma, seed, 0.4))[0] for seed in range(10)]

    assert sum(record is not None for record in flat) >= 7
    assert falling == [None] * 10


def test_a_few_negative_first_losses_are_no_start_of_a_positive_loss():
    loss = [-1.0] * 4 + [0.5 + 0.01 * (-1) ** t for t in range(200)]

    assert first_finding(LossNeverMoved(), steps(loss=loss))[1] is not None


def finding_at_the_end(loss, outcome="finished", **more):
    detector = LossNeverMoved()
    every = more.pop("every", 5)
    for record in steps(loss=loss, every=every, **more):
        update_detector(detector, record)
    stop = replace(event(Event.STOP, every * len(loss)), attributes={"outcome": outcome})
    return update_detector(detector, stop)


@pytest.mark.parametrize("count", [50, 60, 75, 90])
def test_a_short_run_is_judged_at_its_end_by_the_error_of_its_fall(count):
    flat = [noisy([2.0] * count, 0.01, seed) for seed in SEEDS]
    assert all(isinstance(finding_at_the_end(each), Finding) for each in flat)
    assert all(detect(each) == (None, None) for each in flat)
    # A run of so few steps need not have learned anything.
    at_each_step = [finding_at_the_end(each, every=1) for each in flat]
    assert count >= 80 or not any(isinstance(each, Finding) for each in at_each_step)
    for sigma in (0.01, 0.05, 0.2):
        for seed in SEEDS:
            falling = [2.0 - 0.4 * at / count for at in range(count)]
            assert not isinstance(finding_at_the_end(noisy(falling, sigma, seed)), Finding)


def test_a_short_log_that_breaks_off_may_be_of_a_longer_run():
    assert not isinstance(finding_at_the_end(noisy([2.0] * 76, 0.01), "unknown"), Finding)
    assert isinstance(finding_at_the_end(noisy([2.0] * 120, 0.01), "unknown"), Finding)


def test_a_loss_of_both_signs_beside_a_kl_is_a_policy_gradient():
    rng = Random(1)
    loss = [rng.gauss(0.0, 0.01) for _ in range(200)]
    assert isinstance(finding_at_the_end(loss), Finding)
    assert not isinstance(finding_at_the_end(loss, kl_ref=[0.01] * 200), Finding)


def test_a_value_of_an_epoch_stands_for_many_steps():
    loss = noisy([2.3] * 60, 0.01)
    record, _ = detect(loss, epoch=[float(at) for at in range(60)])
    assert 40 <= record.step <= 52


def test_a_slow_start_has_moved():
    loss = noisy([6.93 * (1 - 0.03 * (max(0, t - 60) / 240) ** 2) for t in range(240)], sigma=1e-3)

    assert detect(loss) == (None, None)
