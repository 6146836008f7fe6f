"""The stride between measurements follows their cost, and ranks have common steps."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from sentinel.client.capture.grad_norm import GradNorm
from sentinel.client.capture.gradient_flow import (
    MIN_NOISE_MEASUREMENTS,
    WARM_UP_MEASUREMENTS,
    GradientFlow,
    NoiseAverages,
)
from sentinel.signals.layer_statistics import LayerSum


def flow_with(cost, step_time, measurements=WARM_UP_MEASUREMENTS, *, is_on_device=False, ranks=1):
    flow = GradientFlow(None, GradNorm())
    flow.measurement_count = measurements
    flow.costs_seconds.extend([cost] * 3)
    flow._step_times.extend([step_time] * 3)
    flow._layers = SimpleNamespace(
        is_on_device=is_on_device, is_sharded=ranks > 1, world_size=ranks
    )
    return flow


@pytest.mark.parametrize(
    ("cost", "step_time", "stride"),
    [
        (0.010, 0.100, 20),
        (0.010, 2.000, 1),
        (0.010, 1.100, 2),
        # At most one a second.
        (0.0001, 0.100, 10),
        (0.0001, 0.010, 100),
        (10.0, 0.010, 1000),
    ],
)
def test_a_measurement_takes_half_a_percent_of_the_steps_between_two(cost, step_time, stride):
    assert flow_with(cost, step_time).stride() == stride


def test_the_first_measurements_are_not_far_apart():
    assert flow_with(10.0, 0.010, measurements=0).stride() == 1
    assert flow_with(10.0, 0.010, measurements=WARM_UP_MEASUREMENTS - 1).stride() == 10


def test_the_first_times_and_those_of_a_busy_moment_do_not_count():
    flow = flow_with(0.010, 0.100)
    flow.costs_seconds.append(3.0)
    flow._step_times.append(7.0)

    assert flow.stride() == 20


def test_a_device_whose_time_is_not_seen_is_measured_seldom():
    assert flow_with(0.0001, 5.0, is_on_device=True).stride() == 10


def test_many_ranks_that_report_measure_less_often():
    assert flow_with(0.0001, 1.0, ranks=64).stride() == 1
    assert flow_with(0.0001, 1.0, ranks=1024).stride() == 20


def test_a_given_stride_is_kept():
    flow = flow_with(10.0, 0.010)
    flow.every = 7

    assert flow.stride() == 7


def test_the_noise_scale_needs_several_pairs_and_ignores_what_is_not_finite():
    averages = NoiseAverages()
    pair = LayerSum(sample_norm=2.0, last_norm=2.0, dot=1.0, elements=1.0, grad_norm=2.0)
    for count in range(1, MIN_NOISE_MEASUREMENTS + 1):
        (found,) = averages.add([pair])
        assert (found.mean_dot == found.mean_dot) is (count == MIN_NOISE_MEASUREMENTS)
    assert (found.mean_square, found.mean_dot) == (4.0, 1.0)
    (after,) = averages.add([LayerSum(sample_norm=float("nan"), last_norm=2.0)])
    assert (after.mean_square, after.mean_dot) == (4.0, 1.0)
