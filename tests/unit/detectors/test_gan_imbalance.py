"""Tests of the detector gan_imbalance."""

from random import Random

import pytest

from sentinel.detectors.gan_imbalance import GanImbalance
from sentinel.model.finding import Finding, Severity
from sentinel.readers.rows import RowConverter
from sentinel.testing import first_finding, steps


def healthy(count, level, seed=1):
    rng = Random(seed)
    return [level * rng.lognormvariate(0.0, 0.4) for _ in range(count)]


def warning(discriminator, generator):
    """The first step with a warning, and that finding; None if there is none."""
    detector = GanImbalance()
    for record in steps(discriminator_loss=discriminator, generator_loss=generator):
        finding = detector.update(record)
        if isinstance(finding, Finding) and finding.severity is not Severity.INFO:
            return record.step, finding
    return None


def won(count, start=200, rate=0.02):
    """Losses of a generator that stops learning at `start`: the discriminator's goes to 0."""
    before = healthy(start, 1.2), healthy(start, 1.0)
    after = range(1, count - start + 1)
    return (
        before[0] + [1.2 * 0.97**n for n in after],
        before[1] + [1.0 + rate * n for n in after],
    )


def test_a_discriminator_that_has_won_is_a_warning():
    step, finding = warning(*won(1200))
    # Below 0.01 from the 158th value on.
    assert 358 <= finding.onset_step <= 376
    assert 858 <= step <= 900
    assert finding.evidence["generator_loss_median"] > 10.0


def test_a_generator_that_stays_on_its_level_has_lost_too():
    discriminator, generator = won(1200)
    assert warning(discriminator, generator[:200] + [1.0] * 1000) is not None


@pytest.mark.parametrize("seed", range(5))
def test_healthy_losses_swing_without_a_finding(seed):
    rng = Random(seed)
    level = [0.5 * 4.0 ** rng.uniform(-1, 1) for _ in range(60) for _ in range(50)]
    discriminator = [a * b for a, b in zip(level, healthy(3000, 1.0, seed), strict=True)]
    generator = [b / a for a, b in zip(level, healthy(3000, 1.0, seed + 9), strict=True)]
    records = steps(discriminator_loss=discriminator, generator_loss=generator)
    assert first_finding(GanImbalance(), records) == (None, None)


def test_a_generator_that_is_lost_at_the_start_and_recovers_is_info():
    discriminator = healthy(10, 1.0) + [1e-5] * 300 + healthy(900, 1.0)
    generator = healthy(10, 1.0) + [40.0] * 300 + healthy(900, 1.0)
    assert warning(discriminator, generator) is None


def test_a_generator_that_learns_from_another_term_of_its_loss_is_clear():
    discriminator, _ = won(1200)
    assert warning(discriminator, [40.0 * 0.999**n for n in range(1200)]) is None


def test_the_critic_of_a_wasserstein_gan_has_no_floor():
    rng = Random(2)
    discriminator = [rng.gauss(-0.001, 0.003) for _ in range(1200)]
    records = steps(discriminator_loss=discriminator, generator_loss=healthy(1200, 1.0))
    assert first_finding(GanImbalance(), records) == (None, None)


def test_a_discriminator_that_is_not_used_yet_is_not_judged():
    records = steps(discriminator_loss=[0.0] * 1200, generator_loss=healthy(1200, 1.0))
    assert first_finding(GanImbalance(), records) == (None, None)


@pytest.mark.parametrize(
    ("discriminator", "generator"),
    [
        ("loss_D", "loss_G"),
        ("D_loss", "G_loss"),
        ("errD", "errG"),
        ("Loss_D", "Loss_G"),
        ("train/disc_loss", "train/gen_loss"),
        ("loss/d/total", "loss/g/total"),
        ("dloss", "gloss"),
        ("D_A", "G_A"),
    ],
)
def test_the_keys_of_common_trainers_are_the_two_losses(discriminator, generator):
    converter = RowConverter(run="gan")
    rows = ({"step": n, discriminator: 0.5, generator: 1.5, "D(x)": 0.7} for n in range(200))
    records = [converter.to_record(row) for row in rows]
    assert records[-1].values["discriminator_loss"] == 0.5
    assert records[-1].values["generator_loss"] == 1.5


def test_losses_in_rows_of_their_own_are_judged_together():
    discriminator, generator = won(1200)
    detector = GanImbalance()
    findings = []
    for first, second in zip(
        steps(discriminator_loss=discriminator), steps(generator_loss=generator), strict=True
    ):
        findings += [detector.update(first), detector.update(second)]
    assert any(isinstance(each, Finding) and each.severity is None for each in findings)


@pytest.mark.parametrize(
    "keys", [("D_B", "G_B"), ("loss_D_B", "loss_G_B"), ("D_loss_2", "G_loss_2")]
)
def test_the_second_discriminator_of_a_cycle_is_judged_too(keys):
    """The first one is healthy; with a healthy second one there is no finding."""
    converter = RowConverter(run="gan")
    first = keys[0].replace("B", "A").replace("2", "1"), keys[1].replace("B", "A").replace("2", "1")
    losses = [*healthy(1200, 0.5), *healthy(1200, 0.6, 2)]
    findings = {}
    for name, second in (("won", won(1200)), ("healthy", (losses[:1200], losses[1200:]))):
        rows = zip(losses[:1200], losses[1200:], *second, strict=True)
        records = [
            converter.to_record({"step": n, **dict(zip((*first, *keys), row, strict=True))})
            for n, row in enumerate(rows)
        ]
        findings[name] = first_finding(GanImbalance(), records)[1]
    assert findings["won"].signal == "second_discriminator_loss"
    assert findings["healthy"] is None


def test_the_losses_on_real_and_on_generated_samples_are_one_loss():
    converter = RowConverter(run="gan")
    record = converter.to_record({"step": 1, "G_GAN": 2.0, "D_real": 0.5, "D_fake": 0.25})
    assert record.values["discriminator_loss"] == 0.375
    assert record.values["generator_loss"] == 2.0
