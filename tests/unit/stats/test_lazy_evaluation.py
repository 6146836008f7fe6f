"""What is sorted late, or looked at seldom, says the same as what is looked at every time."""

from collections import deque
from random import Random
from statistics import median

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from sentinel.pipeline.snapshot import deserialize, serialize
from sentinel.stats.drawdown import Drawdown
from sentinel.stats.k_of_n import KOfN
from sentinel.stats.level_shift import LevelShift
from sentinel.stats.margin_cusum import (
    ALARM_THRESHOLD,
    CLIP_SIGMAS,
    MAX_FROZEN_WINDOWS,
    SLACK_SIGMAS,
    WARMUP_VALUES,
    MarginCusum,
)
from sentinel.stats.peak_drop import PeakDrop
from sentinel.stats.persistent_outlier import PersistentOutlier
from sentinel.stats.reward_gain import RewardGain
from sentinel.stats.rolling_quantiles import IQR_TO_SIGMA, RollingQuantiles

few = st.sampled_from([-2.0, -1.0, 0.0, 0.5, 1.0, 1.5, 3.0])
values = st.lists(st.one_of(few, st.floats(-1e3, 1e3)), max_size=90)
level = st.floats(0.1, 10.0)


def quantile(window, share):
    place = share * (len(window) - 1)
    low = sorted(window)[int(place)]
    high = sorted(window)[min(int(place) + 1, len(window) - 1)]
    return low + (high - low) * (place - int(place))


class Plain:
    """The margin CUSUM as it is defined, with all of it worked out at every value."""

    def __init__(self, sign, window, lag, floor, sigmas):
        self.sign, self.window, self.lag = sign, window, lag
        self.floor, self.sigmas = floor, sigmas
        self.baseline, self.waiting = deque(maxlen=window), deque()
        self.evidence, self.onset, self.alarmed = 0.0, 0, False

    def update(self, value, margin, at):
        armed = len(self.baseline) >= WARMUP_VALUES
        if armed:
            usual = quantile(self.baseline, 0.5)
            spread = quantile(self.baseline, 0.75) - quantile(self.baseline, 0.25)
            sigma = max(spread / IQR_TO_SIGMA, self.floor)
            surplus = self.sign * (value - usual) - max(margin, self.sigmas * sigma)
            before = self.evidence
            gathered = before + max(-CLIP_SIGMAS, min(CLIP_SIGMAS, surplus / sigma)) - SLACK_SIGMAS
            self.evidence = min(max(0.0, gathered), 1.5 * ALARM_THRESHOLD)
            self.onset = at if before == 0.0 else self.onset
            self.alarmed = self.evidence > (
                ALARM_THRESHOLD / 4 if self.alarmed else ALARM_THRESHOLD
            )
        self.waiting.append(value)
        wait = min(self.lag, (len(self.baseline) + len(self.waiting)) // 2)
        if armed and self.evidence >= ALARM_THRESHOLD / 2:
            wait = MAX_FROZEN_WINDOWS * self.window
        while len(self.waiting) > wait:
            self.baseline.append(self.waiting.popleft())


@pytest.mark.parametrize("sizes", [(16, 8), (32, 32), (64, 16), (16, 32)])
@pytest.mark.parametrize("sign", [-1, 1])
@pytest.mark.parametrize("sigmas", [0.0, 1.0])
@pytest.mark.parametrize("margin", [0.0, 0.4, 1.5])
def test_a_cusum_that_looks_seldom_sees_all_that_there_is(sizes, sign, sigmas, margin):
    dice = Random(str((sizes, sign, sigmas, margin)))
    shown = [dice.choice([dice.gauss(at > 150, 1.0), -1.0, 0.5]) for at in range(300)]
    window, lag = sizes
    seldom = MarginCusum(sign, window, lag, 0.05, sigmas)
    plain = Plain(sign, window, lag, 0.05, sigmas)
    for at, value in enumerate(shown):
        seldom.update(value, margin, at)
        plain.update(value, margin, at)
        assert seldom.evidence == pytest.approx(plain.evidence, abs=1e-9)
        assert (seldom.onset, seldom.is_alarmed) == (plain.onset, plain.alarmed)
        assert seldom.is_armed == (len(plain.baseline) >= WARMUP_VALUES)
        if at % 29 == 0 and plain.baseline:
            assert seldom.baseline_median == pytest.approx(quantile(plain.baseline, 0.5))
        if at % 37 == 0:
            seldom = deserialize(serialize(seldom))


@given(values, st.integers(1, 40), st.lists(st.booleans(), min_size=90, max_size=90))
def test_a_window_that_is_asked_now_and_then_is_the_last_values(shown, size, asked):
    window = RollingQuantiles(size)
    for at, value in enumerate(shown):
        window.add(value)
        last = shown[max(0, at + 1 - size) : at + 1]
        assert len(window) == len(last)
        if asked[at]:
            assert window.sorted_values() == sorted(last)
            assert window.median == pytest.approx(median(last))
            assert window.sorted_latest(3) == sorted(shown[max(0, at - 2) : at + 1])


@given(values)
def test_the_best_levels_are_the_highest_of_all_medians(shown):
    merit, past, summit = RewardGain(), Drawdown(), PeakDrop()
    for at, value in enumerate(shown, start=1):
        merit.add(value)
        past.add(value)
        summit.add(value)
        of_16 = [median(shown[end - 16 : end]) for end in range(16, at + 1)]
        of_5 = [median(shown[end - 5 : end]) for end in range(5, at + 1)]
        assert merit.best_level == (pytest.approx(max(of_16)) if of_16 else None)
        assert past.best_level == (max(of_16) if of_16 else None)
        assert summit.peak_level == (max(of_5) if of_5 else None)
        assert merit.current_level == pytest.approx(median(shown[max(0, at - 8) : at]))
        assert past.current_level == median(shown[max(0, at - 5) : at])


@given(st.lists(level, min_size=1, max_size=80), st.sampled_from([-1, 1]))
def test_a_departure_is_half_way_when_its_median_is(shown, sign):
    seen, since = LevelShift(sign, 1e9, 2.0), None
    for step, value in enumerate(shown):
        seen.add(value, None, step)
        first, now = median(shown[: min(5, step + 1)]), median(shown[max(0, step - 7) : step + 1])
        there = (now / first) ** sign > 2.0**0.5
        since = (step if since is None else since) if there else None
        assert seen.onset == since
        assert seen.has_begun == there


@given(st.lists(st.tuples(st.integers(0, 2), level), max_size=100))
@example([(0, 1.0), *[(1, 1.0)] * 6, (0, 1.0)])
def test_the_lone_rank_is_the_one_that_nearly_all_name(shown):
    lone = PersistentOutlier(window=8, min_share=0.75)
    for at, (rank, degree) in enumerate(shown):
        lone.add(rank, degree, at)
        last = shown[max(0, at - 7) : at + 1]
        named = [one for one in range(3) if sum(r == one for r, _ in last) >= 6]
        assert lone.rank == (named[0] if named and len(last) == 8 else None)
        assert lone.degree == median(far for _, far in last)
        assert lone.since_step == max(0, at - 7)


@given(values, st.integers(1, 12), st.booleans(), st.lists(few, min_size=1, max_size=4))
def test_a_median_is_beyond_no_bound_that_half_of_the_values_are_within(
    numbers, size, below, bounds
):
    late, window = KOfN(size, below=below), deque(maxlen=size)
    for at, number in enumerate(numbers):
        # A bound that moves now and then.
        bound = bounds[at // 7 % len(bounds)]
        window.append(number)
        may_be = late.add(number, bound)
        beyond = sum(x <= bound if below else x >= bound for x in window)

        assert late.is_full == (len(window) == size)
        assert may_be == (late.is_full and 2 * beyond >= size)
        assert late.median == quantile(window, 0.5)
        if late.is_full and not may_be:
            assert late.median > bound if below else late.median < bound
