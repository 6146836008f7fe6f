"""Tests of the detector grad_explosion."""

from copy import deepcopy
from math import exp, nan
from random import Random

import pytest
from support.faulty_series import norm_run, records
from support.notable_findings import first_notable
from support.seeds import SEEDS

from sentinel.detectors.grad_explosion import GradExplosion
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.pipeline.snapshot import deserialize, serialize
from sentinel.testing import first_finding, steps, update_detector


def noisy(levels, sigma=0.3, seed=0):
    rng = Random(seed)
    return [level * exp(rng.gauss(0.0, sigma)) for level in levels]


def detect(norms):
    return first_finding(GradExplosion(), steps(grad_norm=norms))


def detect_notable(series):
    return first_notable(GradExplosion(), series)


def test_a_norm_that_rises_and_stays_is_a_warning_within_six_points():
    record, finding = detect_notable(steps(grad_norm=noisy([1.0] * 100 + [50.0] * 50)))

    assert 101 <= record.step <= 106
    assert finding.onset_step == 101


def test_one_outlier_is_info():
    record, finding = detect(noisy([1.0] * 100 + [50.0] + [1.0] * 50))

    assert record.step == 101
    assert finding.severity is Severity.INFO
    assert detect(noisy([1.0] * 100 + [5.0] + [1.0] * 50)) == (None, None)


def test_an_outlier_in_a_noisy_series_is_ignored():
    assert detect_notable(steps(grad_norm=noisy([1.0] * 400, sigma=1.5))) == (None, None)


def test_an_explosion_in_the_first_steps_is_found_without_a_baseline():
    norms = [0.4, 0.4, 0.5, 0.5, 0.7, 0.7, 1.0, 6.0, 9.0, 9.0, 9.0]
    record, finding = detect_notable(steps(grad_norm=norms))

    assert record.step == 10
    assert finding.severity is None
    assert finding.onset_step == 8


def test_two_norms_far_above_all_before_explode_in_a_short_log_of_a_supervised_run():
    norms, loss = [0.79, 0.79, 0.78, 0.79, 0.8, 0.79], [10.0 - 0.01 * t for t in range(9)]

    def found(*more, **others):
        values = norms + list(more)
        series = {"grad_norm": values, "loss": loss[: len(values)]} | others
        record, _ = detect_notable(steps(**series))
        return record and record.step

    assert found(11.5, 13.5) == 8
    assert found(11.5, 0.8, 13.5) is None
    assert found(3.0, 3.5) is None
    assert found(11.5, 13.5, reward=[0.5] * 8) is None
    falls = [10.0 - 0.3 * t for t in range(8)]
    assert found(11.5, 13.5, loss=falls) is None


def test_a_recurrent_network_that_explodes_in_its_first_step_is_found_before_nan():
    """A ReLU network with recurrent weights of gain 2 over 60 positions, by SGD."""
    losses, norms = [146.0, 1.13e9, nan, nan], [1.02e5, 2.07e11, nan, nan]
    record, finding = first_finding(GradExplosion(), steps(grad_norm=norms, loss=losses))

    assert record.step == 2
    assert finding.severity is None
    assert finding.summary == ("Gradient norm rose to 2.07e+11; no norm before was above 1.02e+05.")
    detector = GradExplosion()
    calm = [*steps(grad_norm=[1e5, 2e11, *[1e4] * 10], loss=[150.0, 1e9, *[30.0] * 10])]
    outputs = [update_detector(detector, record) for record in calm]
    assert isinstance(outputs[1], Finding)
    assert not any(isinstance(output, Finding) for output in outputs[2:])


@pytest.mark.parametrize(
    ("norms", "losses"),
    [
        # A regression on targets that are not scaled.
        ([480.0, 470.0, 490.0, 520.0, 890.0], [3.9e5, 3.3e5, 3.4e5, 2.7e5, 3.2e5]),
        # Weights that begin at 0, and a loss that is logged as 0 at first.
        ([1e-9, 1e-4, 0.3, 0.4], [2.3, 2.3, 2.3, 2.2]),
        ([0.0, 4e3, 2e3, 1e3], [0.0, 9e4, 5e4, 4e4]),
        # One batch that is out of range.
        ([0.5, 700.0, 0.5, 0.5], [2.0, 90.0, 2.0, 2.0]),
    ],
)
def test_large_losses_and_norms_of_the_first_steps_are_no_explosion(norms, losses):
    assert first_finding(GradExplosion(), steps(grad_norm=norms, loss=losses)) == (None, None)


def test_a_transient_in_the_first_steps_is_ignored():
    """A transient at the start is usual, and so is a norm that doubles in the warm-up."""
    assert detect([50.0, 20.0, 8.0, 3.0, *noisy([1.0] * 100)]) == (None, None)
    assert detect(noisy([1.0 + t / 10 for t in range(30)])) == (None, None)


def test_steps_without_a_learning_signal_do_not_lower_the_baseline():
    mixed = [x for pair in zip([0.0] * 100, noisy([1.0] * 100), strict=True) for x in pair]

    assert detect(mixed) == (None, None)


def test_a_level_reached_before_is_no_explosion():
    norms = noisy([10.0] * 60 + [1.0] * 200 + [8.0] * 60)

    assert detect_notable(steps(grad_norm=norms)) == (None, None)


def test_the_level_of_the_first_steps_does_not_hide_a_rise():
    norms = noisy([30.0 * exp(-t / 10) + 1.0 for t in range(600)] + [12.0] * 60, sigma=0.1)
    record, _ = detect_notable(steps(grad_norm=norms))

    assert 601 <= record.step <= 610


def test_it_clears_once_the_norm_is_back():
    detector = GradExplosion()
    norms = noisy([1.0] * 100 + [50.0] * 20 + [1.0] * 40)
    outputs = [update_detector(detector, record) for record in steps(grad_norm=norms)]

    assert isinstance(outputs[119], Finding)
    assert outputs[-1] == Clear()


def two_modes(count, seed=0, sigma=0.4):
    """Norms of policy training: 30 % of the steps have a signal; of the rest a third are 0."""
    rng = Random(seed)
    levels = rng.choices([1.0, 0.12, 0.0], weights=[3, 5, 2], k=count)
    return noisy(levels, sigma, seed)


@pytest.mark.parametrize("seed", range(8))
def test_an_extreme_norm_among_norms_of_two_modes_is_a_warning(seed):
    norms = two_modes(200, seed)
    norms[120] = 200.0
    record, finding = detect_notable(steps(grad_norm=norms))

    assert record.step == finding.onset_step == 121
    assert finding.evidence["grad_norm"] == 200.0
    assert 0.5 < finding.evidence["third_highest_grad_norm_before"] < 4.0


@pytest.mark.parametrize("seed", range(8))
def test_a_norm_that_jumps_together_with_the_kl_is_a_warning(seed):
    norms, kl = two_modes(200, seed), noisy([0.05] * 200, 0.3, seed)
    norms[120] = 40.0
    alone, _ = detect_notable(steps(grad_norm=norms, kl_ref=kl))
    kl[120] = 2.0
    record, finding = detect_notable(steps(grad_norm=norms, kl_ref=kl))

    assert alone is None
    assert record.step == finding.onset_step == 121
    assert "the KL is 2 nats" in finding.summary


def test_a_tiny_kl_is_no_witness():
    norms, kl = two_modes(200), noisy([1e-5] * 200)
    norms[120], kl[120] = 40.0, 1e-3

    assert detect_notable(steps(grad_norm=norms, kl_ref=kl)) == (None, None)


def test_a_norm_that_jumps_together_with_the_loss_is_a_warning():
    norms, loss = noisy([1.0] * 200), noisy([2.0] * 200, 0.05)
    norms[120], loss[120] = 40.0, 20.0
    record, finding = detect_notable(steps(grad_norm=norms, loss=loss))

    assert record.step == 121
    assert "the loss is 20" in finding.summary


def test_where_most_groups_are_idle_the_fourth_norm_that_is_not_zero_can_be_extreme():
    norms = [0.0] * 40
    norms[2], norms[5], norms[11], norms[19], norms[22] = 0.2, 0.3, 2.0, 30.0, 40.0
    record, finding = detect_notable(steps(grad_norm=norms))

    assert record.step == 20
    assert finding.severity is None


def test_a_rise_where_most_groups_are_idle_is_found():
    before = [0.0, 0.1, 0.3, 0.0, 0.0, 0.2, 0.0, 0.1, 0.0, 0.0, 0.3, 0.0, 0.2, 0.0]
    record, finding = detect_notable(
        steps(grad_norm=[*before, 1.2, 0.0, 1.5, 2.0, 0.0, 1.4, 2.5, 1.8])
    )

    assert record.step <= 20
    assert finding.onset_step == 15


def test_an_open_info_shows_the_largest_norm_so_far():
    norms = noisy([1.0] * 150)
    norms[100], norms[110], norms[120] = 25.0, 30.0, 26.0
    detector = GradExplosion()
    outputs = [update_detector(detector, record) for record in steps(grad_norm=norms)]
    findings = [output for output in outputs if isinstance(output, Finding)]

    assert {finding.severity for finding in findings} == {Severity.INFO}
    assert [finding.evidence["grad_norm"] for finding in findings] == [25.0, 30.0, 30.0]
    assert findings[-1].summary.startswith("The highest of 3 single gradient norms was 30 at")


def test_an_extreme_norm_like_an_earlier_one_is_no_news():
    norms = noisy([1.0] * 600)
    norms[200] = norms[500] = 200.0
    detector = GradExplosion()
    outputs = [update_detector(detector, record) for record in steps(grad_norm=norms)]
    findings = [output for output in outputs if isinstance(output, Finding)]

    assert [finding.severity for finding in findings] == [None, Severity.INFO]


@pytest.mark.parametrize("seed", range(4))
def test_a_gradient_that_grows_while_the_loss_falls_well_is_info(seed):
    """A fresh reward head begins with a small gradient."""
    rng = Random(seed)
    norms = [0.3 * exp(min(t, 14) / 4) * exp(rng.gauss(0, 0.25)) for t in range(60)]
    losses = [0.69 * exp(-max(0, t - 2) / 9) * exp(rng.gauss(0, 0.1)) for t in range(60)]
    rising = [0.69 + 0.01 * t for t in range(60)]

    assert detect_notable(steps(grad_norm=norms, loss=losses)) == (None, None)
    assert detect_notable(steps(grad_norm=norms, loss=rising))[0] is not None


def small_head(seed, last_loss=0.4, spread=0.12):
    """A reward model whose head begins near 0: noisy pairs, a gradient that grows thirtyfold."""
    rng = Random(seed)
    learnt = [1 / (1 + exp(-(t - 35) / 8)) for t in range(150)]
    norms = [0.3 * 30**share * exp(rng.gauss(0, 0.45)) for share in learnt]
    levels = [0.69 * (last_loss / 0.69) ** share for share in learnt]
    return norms, [level * exp(rng.gauss(0, spread)) for level in levels]


@pytest.mark.parametrize("seed", range(8))
def test_a_gradient_that_grows_from_the_start_while_a_noisy_loss_falls_is_info(seed):
    norms, losses = small_head(seed)
    _, flat = small_head(seed, last_loss=0.69)

    assert detect_notable(steps(grad_norm=norms, loss=losses)) == (None, None)
    assert detect_notable(steps(grad_norm=norms, loss=flat))[0] is not None


def test_the_gradient_of_a_memorised_loss_is_info_unless_the_loss_rises():
    norms, losses = small_head(seed=3, last_loss=0.02)
    single = [*norms[:120], 5000.0, *norms[121:]]
    norms[130:] = [300.0 * norm for norm in norms[130:]]
    risen = [*losses[:130], *(4.0 * loss for loss in losses[130:])]

    assert detect_notable(steps(grad_norm=single, loss=losses)) == (None, None)
    assert detect_notable(steps(grad_norm=norms, loss=losses)) == (None, None)
    assert 131 <= detect_notable(steps(grad_norm=norms, loss=risen))[0].step <= 140


def test_an_explosion_after_a_level_that_lasted_is_one_although_the_loss_fell_before():
    norms, losses = small_head(seed=5)
    norms[130:] = [40.0 * norm for norm in norms[130:]]
    record, finding = detect_notable(steps(grad_norm=norms, loss=losses))

    assert 131 <= record.step <= 140
    assert finding.onset_step == 131


def test_a_snapshot_in_a_rise_keeps_its_beginning():
    norms, losses = small_head(seed=2)
    detector = GradExplosion()
    for number, record in enumerate(steps(grad_norm=norms, loss=losses)):
        output = update_detector(detector, record)
        if number % 10 == 9:
            detector = deserialize(serialize(detector))
        assert not isinstance(output, Finding) or output.severity is Severity.INFO


@pytest.mark.seeded
@pytest.mark.parametrize("seed", SEEDS)
def test_healthy_runs_have_no_false_warning(seed):
    assert detect_notable(records(norm_run(seed))) == (None, None)


def test_every_hundredfold_rise_is_found_after_its_onset():
    for seed in range(100, 115):
        run = norm_run(seed, "grad_explosion")
        record, _ = detect_notable(records(run))
        assert record is not None, seed
        assert run.onset <= record.step <= run.onset + 60 * run.every, seed


def test_the_threshold_is_what_a_single_norm_has_to_exceed():
    detector = GradExplosion()
    outputs = [detector.update(each) for each in steps(grad_norm=noisy([1.0] * 100))]
    threshold = outputs[-1].threshold
    for factor, kind in ((0.98, Clear), (1.02, Finding)):
        single = deepcopy(detector)
        (record,) = steps(grad_norm=[factor * threshold])
        assert isinstance(single.update(record), kind)
