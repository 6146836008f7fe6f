"""Trace: remembers any run in few points, and close to what it was."""

from sentinel.stats.downsampled_history import MAX_POINTS, DownsampledHistory


def traced(count, every=1):
    trace = DownsampledHistory()
    for step in range(0, count * every, every):
        trace.add(step, 3.0 * step)
    return trace


def test_a_straight_line_is_remembered_exactly_however_long():
    trace = traced(100_000)

    assert len(trace.steps) <= MAX_POINTS
    assert abs(trace.value_at(54_321) - 3 * 54_321) < 1e-6


def test_before_the_first_nothing_is_known_and_after_the_last_it_stays():
    trace = traced(10, every=5)

    assert trace.value_at(-1) is None
    assert trace.value_at(1000) == 3 * 45
    assert DownsampledHistory().value_at(0) is None


def test_what_is_cut_is_forgotten_and_may_be_told_anew():
    trace = traced(10)
    trace.discard_from(5)
    trace.add(5, 0.0)

    assert trace.value_at(4) == 12
    assert trace.value_at(5) == 0
    assert trace.steps[-1] == 5
