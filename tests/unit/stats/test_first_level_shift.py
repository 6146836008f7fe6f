"""Shifts from the first level, and what noise explains."""

import numpy as np
import pytest

from sentinel.stats.first_level_shift import FirstLevelShift


def shift_of(values, sign=1, rewards=None, **settings):
    shift = FirstLevelShift(sign, 2.0, **settings)
    for step, value in enumerate(values):
        shift.add(value, None if rewards is None else rewards[step], step)
    return shift


@pytest.mark.parametrize(
    ("values", "first"),
    [
        ([230.0, 240.0, 3.0, 3.0, 3.0, 3.0], 235.0),
        ([230.0, 3.0, 3.0, 3.0, 3.0, 3.0], 3.0),
        ([230.0, 240.0, 100.0, 90.0, 80.0, 3.0], 100.0),
    ],
)
def test_a_sudden_fall_ends_the_first_values(values, first):
    assert shift_of(values, sign=-1, sudden_share=0.1).first_level == first


def test_steady_growth_is_significant_and_no_noise():
    values = [100.0 * 2 ** (at / 60) for at in range(80)]

    assert shift_of(values).is_significant
    assert shift_of(values[:24], sign=-1).is_significant is False


@pytest.mark.parametrize("seed", range(4))
def test_noise_of_single_completions_is_not_significant(seed):
    noise = np.random.default_rng(seed).standard_normal(2_000)
    shift, count = FirstLevelShift(1, 2.0), 0
    for step, value in enumerate(200 * np.exp(0.6 * noise)):
        shift.add(float(value), None, step)
        is_far = shift.half_way_step is not None and shift.current_level > 2 * shift.first_level
        count += is_far and shift.is_significant

    assert count <= 2


def test_a_reward_that_rises_with_the_series_is_no_shift_without_reward():
    values = [100.0 * 2 ** (at / 100) for at in range(200)]
    rising = [0.2 + 0.003 * at + 0.02 * (-1) ** at for at in range(200)]

    assert not shift_of(values, rewards=rising).is_unrewarded(100.0)
    assert shift_of(values, rewards=[0.2 + 0.02 * (-1) ** at for at in range(200)]).is_unrewarded()


def test_levels_whose_quotient_is_no_float_are_compared():
    fall = FirstLevelShift(-1, 2.0)
    for step, value in enumerate([1e300] * 16 + [1e-300] * 16):
        fall.add(value, 0.1, step)

    assert (fall.half_way_step, fall.is_off_first_value) == (19, True)
    assert fall.is_unrewarded(1e300)
