"""Tests of the detector sharpness_high."""

from __future__ import annotations

import pytest

from sentinel.detectors.sharpness_high import SharpnessHigh
from sentinel.testing import first_finding, steps

EDGE = [0.1, 0.4, 0.9, 1.0, 1.1, 0.95, 1.2, 1.0, 1.6, 1.05] * 3
CATAPULT = [60.0, 30.0, 9.0, 5.0, 1.4, 0.7, 0.5]
SMALL_BATCHES = [1.8, 2.2, 3.0, 2.2, 4.6, 2.4, 2.7, 6.7, 2.5, 1.8] * 3


def test_a_ratio_far_above_the_edge_is_found_at_the_fourth_measurement():
    ratios = [0.5, 1.0, 10.0, 20.0, 18.0, 16.0, 9.0]
    records = steps(sharpness_ratio=ratios, sharpness=[50.0 * x for x in ratios], every=10)
    record, finding = first_finding(SharpnessHigh(), records)

    assert record.step == 51
    assert finding.onset_step == 21
    assert "16 times the highest at which the learning rate is stable" in finding.summary
    assert finding.evidence["sharpness"] == 800.0


@pytest.mark.parametrize("ratios", [EDGE, CATAPULT, SMALL_BATCHES])
def test_the_edge_of_stability_a_catapult_and_small_batches_are_clear(ratios):
    assert first_finding(SharpnessHigh(), steps(sharpness_ratio=ratios)) == (None, None)
