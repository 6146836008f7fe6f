"""Series of single ranks, and counts of all ranks."""

from __future__ import annotations

import pytest
from support.expositions import make_exposition, samples
from support.results import NOW, incident_result, make_incident, make_result, step_result

from sentinel.model.record import Event


def test_ranks_have_series_up_to_the_limit():
    ranks = [step_result(step=4, rank=r, step_time=0.5) for r in range(1000)]
    shown = samples(make_exposition(*ranks, per_rank_limit=3))

    assert [key for key in shown if key[0] == "sentinel_rank_up"] == [
        ("sentinel_rank_up", "0"),
        ("sentinel_rank_up", "1"),
        ("sentinel_rank_up", "2"),
    ]
    assert shown["sentinel_rank_step_duration_seconds", "2"] == 0.5
    assert shown["sentinel_rank_last_step_timestamp_seconds", "2"] == NOW + 4


def test_outliers_have_series_beyond_the_limit_and_the_others_are_counted():
    ranks = [step_result(step=4, rank=r) for r in range(1000)]
    shown = make_exposition(*ranks, incident_result(of=make_incident(rank=700)), per_rank_limit=3)

    assert [key[1] for key in samples(shown) if key[0] == "sentinel_rank_up"] == [
        "0", "1", "2", "700",
    ]  # fmt: skip
    assert samples(shown)["sentinel_ranks_hidden",] == 996
    assert [*shown.state()["ranks"]] == ["0", "1", "2", "700"]
    assert shown.state()["ranks_hidden"] == 996


@pytest.mark.fault("T4")
def test_series_of_removed_ranks_disappear_at_once():
    """An elastic restart from four ranks to two, and back."""
    shown, counts = make_exposition(), []
    for attempt, count in enumerate((4, 2, 4)):
        for rank in range(count):
            shown.update(make_result(Event.START, rank=rank, attempt=attempt))
        counts.append(sum(key[0] == "sentinel_rank_up" for key in samples(shown)))

    assert counts == [4, 2, 4]


def test_all_ranks_are_counted_independently_of_the_limit():
    liveness = {
        "ranks_running": 1000.0,
        "ranks_gone": 24.0,
        "ranks_failed": 0.0,
        "idle_seconds": 1.0,
    }
    shown = samples(
        make_exposition(make_result(Event.HEARTBEAT, values=liveness), per_rank_limit=0)
    )

    assert shown["sentinel_ranks_running",] == 1000
    assert shown["sentinel_ranks_gone",] == 24
    assert not [key for key in shown if "idle" in key[0]]
