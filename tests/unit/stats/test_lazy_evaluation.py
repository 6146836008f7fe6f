"""Lazy evaluation gives the same results as evaluation at every value."""

from collections import deque
from math import inf
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sentinel.stats.baseline import Baseline, BaselineSettings, TrajectoryPrior
from sentinel.stats.k_of_n import KOfN
from sentinel.stats.level_shift import LevelShift, MeanChange
from sentinel.stats.persistent_outlier import PersistentOutlier
from sentinel.stats.reward_gain import RewardGain
from sentinel.stats.reward_history import RewardHistory
from sentinel.stats.rolling_quantiles import RollingQuantiles

few = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 1.5, 3.0])
values = st.lists(st.one_of(few, st.floats(-1e3, 1e3)), max_size=90)
level = st.floats(0.1, 10.0)


def quantile(window, share):
    place = share * (len(window) - 1)
    low = sorted(window)[int(place)]
    high = sorted(window)[min(int(place) + 1, len(window) - 1)]
    return low + (high - low) * (place - int(place))


@given(values, st.integers(1, 40), st.lists(st.booleans(), min_size=90, max_size=90))
def test_a_window_queried_at_times_holds_the_last_values(series, size, queried):
    window = RollingQuantiles(size)
    for at, value in enumerate(series):
        window.add(value)
        last = series[max(0, at + 1 - size) : at + 1]
        assert len(window) == len(last)
        if queried[at]:
            assert window.sorted_values() == sorted(last)
            assert window.median == pytest.approx(median(last))
            assert window.sorted_latest(3) == sorted(series[max(0, at - 2) : at + 1])


@given(values)
def test_a_gain_is_lost_from_the_highest_median_of_a_block(series):
    gain = RewardGain()
    for at, value in enumerate(series, start=1):
        gain.add(value)
        ends = range(16, at + 1, 8)
        best = max((median(series[end - 16 : end]) for end in ends), default=None)
        loss = 0.0 if best is None else best - median(series[max(0, at - 16) : at])
        assert gain.current_level == pytest.approx(median(series[max(0, at - 8) : at]))
        if best is None or loss <= 0.0:
            assert not gain.has_lost
        elif loss > max(best - gain.first_level, 3.0 * gain.noise):
            assert gain.has_lost


@given(st.lists(level, min_size=1, max_size=80), st.sampled_from([-1, 1]))
def test_a_shift_is_half_way_when_its_median_is(series, sign):
    shift, since = LevelShift(sign, 2.0, 1e9), None
    for step, value in enumerate(series):
        shift.add(value, None, step)
        first, now = median(series[: min(5, step + 1)]), median(series[max(0, step - 7) : step + 1])
        is_half_way = (now / first) ** sign > 2.0**0.5
        since = (step if since is None else since) if is_half_way else None
        assert shift.onset == since
        assert shift.has_begun == is_half_way


@given(st.lists(st.tuples(st.integers(0, 2), level), max_size=100))
@example([(0, 1.0), *[(1, 1.0)] * 6, (0, 1.0)])
def test_the_outlier_is_the_rank_that_nearly_all_records_name(series):
    outlier = PersistentOutlier(window=8, min_share=0.75)
    for at, (rank, degree) in enumerate(series):
        outlier.add(rank, degree, at)
        last = series[max(0, at - 7) : at + 1]
        named = [one for one in range(3) if sum(r == one for r, _ in last) >= 6]
        assert outlier.rank == (named[0] if named and len(last) == 8 else None)
        assert outlier.degree == median(far for _, far in last)
        steps = range(max(0, at - 7), at + 1)
        naming = [s for s, (r, _) in zip(steps, last, strict=True) if r == outlier.rank]
        assert outlier.since_step == (naming[0] if naming else 0)


@given(values, st.integers(1, 12), st.booleans(), st.lists(few, min_size=1, max_size=4))
def test_a_median_is_compared_with_a_bound_that_changes(numbers, size, below, bounds):
    k_of_n, window, onset = KOfN(size, below=below), deque(maxlen=size), None
    for at, number in enumerate(numbers):
        # The bound changes from time to time.
        bound = bounds[at // 7 % len(bounds)]
        window.append(number)
        is_beyond = number < bound if below else number >= bound
        onset = (at if onset is None else onset) if is_beyond else None
        median_is_beyond = k_of_n.add(number, bound, at)

        assert (median_is_beyond is None) == (len(window) < size)
        assert k_of_n.onset == onset
        assert k_of_n.median == quantile(window, 0.5)
        if median_is_beyond is not None:
            assert median_is_beyond == (k_of_n.median < bound if below else k_of_n.median >= bound)


CHUNKED = {
    "reward gain": (RewardGain, 1),
    "mean change": (MeanChange, 1),
    "reward history": (RewardHistory, 2),
}


@pytest.mark.parametrize("name", CHUNKED)
@given(st.lists(values, max_size=6))
def test_values_added_together_are_as_values_added_one_by_one(name, chunks):
    make, columns = CHUNKED[name]
    single, together = make(), make()
    for chunk in chunks:
        together.extend(*[chunk] * columns)
        for value in chunk:
            single.extend(*[(value,)] * columns)
    for each in (single, together):
        # What is still unread is a part of the state.
        _ = getattr(each, "noise", None)

    assert together == single


@given(st.lists(st.tuples(level, st.none() | few), max_size=200), st.sampled_from([-1, 1]))
def test_a_shift_that_is_queried_late_is_as_one_that_is_queried_often(series, sign):
    often, late = (LevelShift(sign, 2.0) for _ in range(2))
    for step, (value, reward) in enumerate(series):
        often.add(value, reward, step)
        late.add(value, reward, step)
        _ = often.reward_gain.noise, often.is_significant, often.is_off_first_value
    results = [
        (each.reward_gain.noise, each.reward_gain.first_level, each.half_way_step)
        + ((each.is_significant, each.is_off_first_value, each.is_unrewarded()) if series else ())
        for each in (often, late)
    ]

    assert results[0] == results[1]


@given(
    st.lists(st.floats(0.2, 5.0), max_size=400),
    st.sampled_from([0.3, 0.7, inf]),
    st.sampled_from([0.1, 0.3]),
)
def test_values_that_are_where_they_are_expected_need_no_test(series, rise, fall):
    settings = BaselineSettings(TrajectoryPrior(), rise_margin=rise, fall_margin=fall)
    usual, tested = Baseline(settings), Baseline(settings)
    for step, value in enumerate(series):
        # The levels of a run shift in the middle, and its margin changes with another signal.
        scaled = value**0.2 * (2.0 if 150 < step < 200 else 1.0)
        for each in (usual, tested):
            if step in (100, 240) and rise < inf:
                each.set_rise_margin(rise / (2.0 if step == 100 else 1.0))
            if each is tested:
                each._lowest_usual, each._highest_usual = inf, -inf
                each.rise.expected_least = each.fall.expected_least = -inf
            each.update(scaled, step / 100, step)
        assert [
            (each.cusum, each.fit, each.is_alarmed, each.is_outdated)
            for each in (usual.rise, usual.fall)
        ] == [
            (each.cusum, each.fit, each.is_alarmed, each.is_outdated)
            for each in (tested.rise, tested.fall)
        ]
