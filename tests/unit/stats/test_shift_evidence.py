"""Tests of `shift_evidence`."""

from math import exp
from random import Random

from sentinel.stats.shift_evidence import MAX_EVIDENCE, shift_evidence


def test_evidence_grows_with_the_excess_up_to_its_bound():
    values = [shift_evidence(x / 10) for x in range(-50, 50)]

    assert values == sorted(values)
    assert shift_evidence(1e300) == values[-1] == MAX_EVIDENCE


def test_likelihood_ratios_of_normal_noise_have_a_mean_of_about_one():
    rng = Random(0)
    ratios = [exp(shift_evidence(rng.gauss(0.0, 1.0))) for _ in range(20_000)]

    assert 0.9 < sum(ratios) / len(ratios) < 1.05
