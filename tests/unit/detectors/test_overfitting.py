"""Tests of the detector overfitting."""

from math import exp
from random import Random

import pytest
from support.faulty_series import evaluated_run, records
from support.seeds import SEEDS

from sentinel.detectors.overfitting import Overfitting
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, update_detector

FALLING = [3.0, 2.5, 2.2, 2.0, 1.9, 1.8, 1.7, 1.6, 1.5, 1.4, 1.3, 1.2]
TURNING = [3.1, 2.6, 2.4, 2.3, 2.25, 2.3, 2.4, 2.55, 2.7, 2.9, 3.1, 3.3]


def run(trained, held_out, every=100):
    for index, (loss, eval_loss) in enumerate(zip(trained, held_out, strict=True), start=1):
        yield event(Event.STEP, index * every, loss=loss)
        yield event(Event.EVAL, index * every, eval_loss=eval_loss)


def test_a_rising_held_out_loss_with_a_falling_training_loss_is_a_warning():
    record, finding = first_finding(Overfitting(), run(FALLING, TURNING))

    assert record.step == 1000
    assert finding.severity is None
    assert finding.onset_step == 600
    assert finding.evidence["best_step"] == 500


def test_both_losses_in_one_record_are_evaluated():
    rows = (
        event(Event.STEP, step, loss=loss, eval_loss=held_out)
        for step, (loss, held_out) in enumerate(zip(FALLING, TURNING, strict=True))
    )

    assert first_finding(Overfitting(), rows)[1].evidence["best_step"] == 4


def test_a_rising_training_loss_is_no_overfitting():
    assert first_finding(Overfitting(), run(TURNING, TURNING)) == (None, None)


def test_one_bad_evaluation_of_many_is_no_finding():
    held_out = [*FALLING[:6], 9.0, *FALLING[7:]]

    assert first_finding(Overfitting(), run(FALLING, held_out)) == (None, None)


def test_an_evaluation_logged_twice_counts_once():
    twice = (r for r in run(FALLING, TURNING) for _ in range(1 + (r.event is Event.EVAL)))

    assert first_finding(Overfitting(), twice)[0].step == 1000


def test_noisy_evaluations_must_rise_by_more():
    """A rise of a tenth is ignored if neighbours differ by as much."""
    held_out = [2.0, 2.4, 1.9, 2.3, 1.95, 2.45, 2.1, 2.5, 2.05, 2.55, 2.1, 2.5]

    assert first_finding(Overfitting(), run(FALLING, held_out)) == (None, None)


def with_accuracy(accuracies, held_out=None):
    for index, (loss, accuracy) in enumerate(zip(FALLING, accuracies, strict=True), start=1):
        yield event(Event.STEP, index * 100, loss=loss)
        more = {} if held_out is None else {"eval_loss": held_out[index - 1]}
        yield event(Event.EVAL, index * 100, eval_accuracy=accuracy, **more)


PEAK = [0.3, 0.5, 0.6, 0.68, 0.7, 0.69, 0.66, 0.64, 0.6, 0.58, 0.55, 0.52]
RISING = [0.3, 0.5, 0.6, 0.68, 0.7, 0.71, 0.71, 0.72, 0.72, 0.72, 0.73, 0.73]


@pytest.mark.parametrize("unit", [1, 100])
def test_a_falling_held_out_accuracy_alone_is_a_warning(unit):
    """The first accuracy, 0.3 %, looks like a fraction until one exceeds 1."""
    _, finding = first_finding(
        Overfitting(), with_accuracy([0.003 * unit, *[a * unit for a in PEAK[1:]]])
    )

    assert finding.severity is None
    assert finding.summary.startswith("Accuracy on held-out data fell from 69.0% to 6")
    assert first_finding(Overfitting(), with_accuracy([a * unit for a in RISING])) == (None, None)


def test_a_slightly_higher_loss_at_the_best_accuracy_is_info():
    slight = [3.1, 2.6, 2.4, 2.3, 2.25, 2.3, 2.4, 2.45, 2.5, 2.5, 2.5, 2.5]
    _, holds = first_finding(Overfitting(), with_accuracy(RISING, slight))
    _, falls = first_finding(Overfitting(), with_accuracy(PEAK, slight))

    assert (holds.severity, falls.severity) == (Severity.INFO, None)
    assert "accuracy on held-out data is 7" in holds.summary


FINE_TUNED = [3.77, 3.78, 4.01, 4.16, 4.24, 4.31, 4.38, 4.41, 4.43]
"""Held-out losses of a language model fine-tuned on 24 texts, evaluated each 25 steps."""


def fine_tuned(token_accuracies):
    for at, (held_out, accuracy) in enumerate(zip(FINE_TUNED, token_accuracies, strict=True)):
        for step in range(25 * at + 1, 25 * at + 26):
            yield event(Event.STEP, step, loss=2.0 + 1.4 * exp(-step / 80))
        named = {"eval_loss": held_out, "eval_token_accuracy": accuracy}
        yield event(Event.EVAL, 25 * at + 25, **named)


@pytest.mark.parametrize(
    ("first", "last", "severity"), [(0.02, 0.06, None), (0.5, 0.5, None), (0.5, 0.66, "info")]
)
def test_token_accuracy_excuses_a_rise_only_if_it_clearly_rises_too(first, last, severity):
    accuracies = [first + (last - first) * at / 8 for at in range(9)]
    _, finding = first_finding(Overfitting(), fine_tuned(accuracies))

    assert finding.severity == (severity and Severity(severity))
    assert finding.evidence["best_step"] == 25


def test_the_best_evaluation_so_far_is_no_overfitting():
    before = [3.1, 2.6, 2.4, 2.3, 2.25, 2.22, 2.2, 2.18, 2.17, 2.6, 2.62]

    assert first_finding(Overfitting(), run(FALLING, [*before, 2.6]))[1] is not None
    assert first_finding(Overfitting(), run(FALLING, [*before, 2.1])) == (None, None)


def test_noise_that_grows_as_the_loss_falls_is_no_rise():
    """An error that falls to a noisy floor, as of a regression."""
    for seed in range(1_000_000, 1_000_012):
        rng = Random(seed)
        falling = [1e-3 * exp(-i / 10) + 1e-5 for i in range(60)]
        noisy = [1.2 * loss + 1e-5 * exp(rng.gauss(0.0, 0.5)) for loss in falling]

        assert first_finding(Overfitting(), run(falling, noisy)) == (None, None), seed


def test_the_best_of_many_evaluations_is_low_by_luck():
    trained = [0.25 + 0.6 * exp(-i / 30) for i in range(800)]
    for seed in range(1_000_000, 1_000_006):
        rng = Random(seed)
        held_out = [1.05 * loss + rng.gauss(0.0, 0.006) for loss in trained]

        assert first_finding(Overfitting(), run(trained, held_out)) == (None, None), seed


def wandering(seed, count=600, turns_at=None):
    """Held-out losses that wander about a falling level, or one that turns; and training losses."""
    rng, drift = Random(seed), 0.0
    held_out, trained = [], []
    for t in range(count):
        drift = 0.9 * drift + rng.gauss(0.0, 0.02)
        turned = 0 if turns_at is None else max(0, t - turns_at)
        held_out.append((1.5 + 3.0 * exp(-t / 80) - t / count) * exp(drift + turned / 200))
        trained.append((1.4 + 3.0 * exp(-t / 80) - t / count) * exp(rng.gauss(0.0, 0.02)))
    return trained, held_out


def test_a_long_run_whose_held_out_loss_wanders_is_no_overfitting():
    found = [first_finding(Overfitting(), run(*wandering(seed)))[1] for seed in range(8)]
    turning = [first_finding(Overfitting(), run(*wandering(s, turns_at=350)))[1] for s in range(8)]

    assert found == [None] * 8
    assert all(finding is not None for finding in turning)


def test_one_burst_of_high_evaluations_is_over_before_it_is_reported():
    burst = [*TURNING[:5] * 4, 9.0, 9.0, 9.0, *[2.2] * 8]
    trained = [3.0 - t / 20 for t in range(len(burst))]
    smooth = [4.0 - t / 15 for t in range(20)] + burst[20:]

    assert first_finding(Overfitting(), run(trained, smooth)) == (None, None)


def test_a_run_with_a_reward_is_not_evaluated():
    rewarded = [event(Event.STEP, 0, loss=1.0, reward=1.0), *run(FALLING, TURNING)]

    assert first_finding(Overfitting(), rewarded) == (None, None)


def test_no_output_without_a_training_loss():
    held_out = (r for r in run(FALLING, TURNING) if r.event is Event.EVAL)

    assert first_finding(Overfitting(), held_out) == (None, None)


def test_it_clears_once_the_held_out_loss_is_near_its_best_again():
    detector = Overfitting()
    healed = [*TURNING, 2.2, 2.2, 2.2]
    outputs = [update_detector(detector, r) for r in run([*FALLING, 1.1, 1.0, 0.9], healed)]

    assert isinstance(outputs[-7], Finding)
    assert outputs[-1] == Clear()


@pytest.mark.seeded
@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_runs_have_no_false_warning(seed):
    assert first_finding(Overfitting(), records(evaluated_run(seed))) == (None, None)


def test_nearly_all_rises_by_half_are_found():
    sick = [evaluated_run(seed, "overfitting", "severe") for seed in range(100, 120)]
    found = [first_finding(Overfitting(), records(run))[0] for run in sick]

    assert sum(r is not None and r.step >= s.onset for r, s in zip(found, sick, strict=True)) >= 18


def trained_only(seed, rise, *, epochs=5.0, jumps=False):
    """600 training losses that fall, and rise by the fraction `rise` over the latter half."""
    rng = Random(seed)
    for t in range(600):
        progress = float(t > 300) if jumps else max(0, t - 300) / 300
        loss = (1.5 + exp(-t / 40)) * (1 + rise * progress) * exp(rng.gauss(0.0, 0.03))
        yield event(Event.STEP, t + 1, loss=loss, epoch=epochs * t / 600)


def test_a_training_loss_that_falls_and_slowly_rises_is_found_without_a_held_out_loss():
    for seed in range(5):
        _, finding = first_finding(Overfitting(), trained_only(seed, 0.7))
        assert "no held-out loss is logged" in finding.summary
        assert 200 < finding.onset_step < 400


@pytest.mark.parametrize(
    "options", [{"rise": 0.05}, {"rise": 0.7, "epochs": 0.9}, {"rise": 0.7, "jumps": True}]
)
def test_other_training_losses_are_no_overfitting(options):
    assert first_finding(Overfitting(), trained_only(1, **options)) == (None, None)
