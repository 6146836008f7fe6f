"""Tests of the detector clip_saturation."""

from math import nan

from sentinel.detectors.clip_saturation import ClipSaturation
from sentinel.model.finding import Clear, Severity
from sentinel.testing import first_finding, steps, update_detector


def test_a_third_is_info_and_most_is_a_warning():
    detector = ClipSaturation()
    clipped = [0.05] * 20 + [0.4] * 20 + [0.7] * 20
    outputs = [
        update_detector(detector, r) for r in steps(clip_fraction=clipped, kl_old=[0.2] * 60)
    ]

    assert outputs[35].severity is None
    assert outputs[35].onset_step == 21
    assert outputs[35].evidence["kl_old_nats"] == 0.2
    assert outputs[-1].severity is Severity.WARNING
    assert ClipSaturation.severity is Severity.INFO


def test_single_batches_are_ignored():
    assert first_finding(ClipSaturation(), steps(clip_fraction=[0.05, 0.9, 0.05] * 20))[0] is None


def test_clears_and_ignores_invalid_values():
    detector = ClipSaturation()
    outputs = [
        update_detector(detector, r) for r in steps(clip_fraction=[0.5] * 20 + [0.1] * 20 + [nan])
    ]

    assert outputs[-5:] == [Clear()] * 4 + [None]
