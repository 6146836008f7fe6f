"""Tests of the detector learning_rate_anomaly."""

from math import cos, pi

import pytest
from support.loss_series import falling_loss, flat_loss

from sentinel.detectors.learning_rate_anomaly import LearningRateAnomaly
from sentinel.model.finding import Clear, Finding
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, steps, update_detector


def schedule(count=400, warm=40, peak=1e-5):
    """Linear warm-up, then a cosine down to 0."""
    down = [(1 + cos(pi * t / (count - warm))) / 2 for t in range(count - warm)]
    return [peak * t / warm for t in range(warm)] + [peak * x for x in down]


def run(rates, first=0, **start):
    yield event(Event.START, first, **start)
    yield from steps(first=first, learning_rate=rates)


def detect(*parts):
    return first_finding(LearningRateAnomaly(), (record for part in parts for record in part))


def test_a_warm_up_repeated_after_a_resume_is_a_warning_at_once():
    rates = schedule()
    record, finding = detect(run(rates[:200]), run(rates[:100], first=200))

    assert record.step == finding.onset_step == 200
    assert finding.severity is None
    assert finding.evidence["learning_rate_before_restart"] == pytest.approx(rates[200], rel=0.05)


def test_a_reset_is_reported_for_sixteen_records():
    detector = LearningRateAnomaly()
    rates = schedule()
    parts = [*run(rates[:200]), *run(rates[:100], first=200)]
    outputs = [update_detector(detector, record) for record in parts]

    assert sum(isinstance(output, Finding) for output in outputs) == 16
    assert outputs[-1] == Clear()


@pytest.mark.parametrize("at", [20, 120, 200, 399])
def test_a_schedule_that_continues_from_a_checkpoint_is_clear(at):
    rates = schedule()

    assert detect(run(rates[:200]), run(rates[at:], first=at)) == (None, None)


def test_another_training_with_another_rate_is_no_reset():
    rates = schedule()
    again = run([1e-3] * 100, first=200, learning_rate=1e-3)

    assert detect(run(rates[:200], learning_rate=1e-5), again) == (None, None)


def test_a_training_that_follows_in_the_same_run_is_no_reset():
    first, second = schedule(), schedule()
    later = [
        event(Event.START, 400),
        event(Event.STEP, 400, learning_rate=0.0, restarted_after_step=400.0),
    ]

    assert detect(run(first), later, steps(first=401, learning_rate=second)) == (None, None)


def test_a_rate_that_never_leaves_its_first_value_in_a_warm_up_is_stuck():
    record, finding = detect(run([1e-7] * 400, warmup_steps=100.0))

    assert record.step == 201
    assert "warm-up" in finding.summary


def test_a_warm_up_may_be_declared_as_a_share_of_the_run():
    rates = [1e-7] * 400

    assert detect(run(rates, warmup_ratio=0.1, max_steps=1000.0))[0].step == 201
    assert detect(run(rates, warmup_steps=0.1, max_steps=1000.0))[0].step == 201


def test_a_constant_rate_without_a_warm_up_or_after_one_is_clear():
    assert detect(run([1e-5] * 1000)) == (None, None)
    assert detect(run([*schedule()[:40], *[1e-5] * 1000], warmup_steps=40.0)) == (None, None)
    assert detect(run([1e-5] * 1000, first=500, warmup_steps=40.0)) == (None, None)


def test_a_rate_of_zero_since_the_first_step_is_found():
    record, finding = detect(run([0.0] * 100))

    assert record.step == 63
    assert finding.onset_step == 0


def test_a_schedule_that_ended_too_early_is_found():
    record, finding = detect(run([*schedule(), *[0.0] * 200]))

    assert 460 <= record.step <= 470
    assert finding.onset_step == 400


def test_zeros_at_the_start_of_a_warm_up_and_at_the_end_are_clear():
    assert detect(run([0.0] * 10 + schedule() + [0.0] * 10)) == (None, None)
    assert detect(run([1e-5] * 5000 + [0.0] * 100)) == (None, None)


@pytest.mark.parametrize("seed", range(5))
def test_a_log_that_rounds_every_rate_to_zero_has_no_rate_of_zero(seed):
    series = steps(learning_rate=[0.0] * 300, loss=falling_loss(300, seed))

    assert detect(series) == (None, None)


@pytest.mark.parametrize("seed", range(5))
def test_a_rate_of_zero_with_a_loss_that_does_not_move_is_found(seed):
    record, _ = detect(steps(learning_rate=[0.0] * 300, loss=flat_loss(300, seed=seed)))

    assert record.step == 64


def test_a_schedule_that_a_log_rounds_to_three_decimals_has_not_ended():
    rates = [round(rate, 3) for rate in schedule(count=1000, peak=0.004)]

    assert detect(run([*rates, *[0.0] * 100], first=0)) == (None, None)


def test_a_log_without_a_fourth_decimal_has_no_rate_of_zero():
    loss = flat_loss(300)

    coarse = steps(learning_rate=[0.0] * 300, loss=[round(x, 3) for x in loss])
    assert detect(coarse) == (None, None)
    fine = steps(learning_rate=[0.0] * 300, loss=[round(x, 4) for x in loss])
    assert detect(fine)[0].step == 64
