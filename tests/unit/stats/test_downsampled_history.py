"""A history of any length is stored in few points."""

from sentinel.stats.downsampled_history import MAX_POINTS, DownsampledHistory


def history_of(count, every=1):
    history = DownsampledHistory()
    for step in range(0, count * every, every):
        history.add(step, 3.0 * step)
    return history


def test_a_straight_line_is_exact_however_long():
    history = history_of(100_000)

    assert len(history.steps) <= MAX_POINTS
    assert abs(history.value_at(54_321) - 3 * 54_321) < 1e-6


def test_there_is_no_value_before_the_first_point_and_the_last_value_holds():
    history = history_of(10, every=5)

    assert history.value_at(-1) is None
    assert history.value_at(1000) == 3 * 45
    assert DownsampledHistory().value_at(0) is None


def test_discarded_steps_can_be_added_again():
    history = history_of(10)
    history.discard_from(5)
    history.add(5, 0.0)

    assert history.value_at(4) == 12
    assert history.value_at(5) == 0
    assert history.steps[-1] == 5
