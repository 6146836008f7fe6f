"""The limit of a turn follows from how long the turns take."""

from __future__ import annotations

from sentinel.agent.turn_limit import MAX_RECORDS, MAX_TURN_SECONDS, MIN_RECORDS, TurnLimit


def turn_seconds(limit, seconds_per_record):
    """Lengths of 20 turns that reach the limit."""
    turns = []
    for _ in range(20):
        turns.append(limit.max_records * seconds_per_record)
        limit.update(turns[-1], is_reached=True)
    return turns


def test_turns_of_slow_and_of_fast_records_take_about_as_long():
    for seconds_per_record in (5e-5, 2e-4, 1e-3):
        turns = turn_seconds(TurnLimit(), seconds_per_record)
        assert max(turns[3:]) <= 2 * MAX_TURN_SECONDS
        assert min(turns[5:]) >= 0.25 * MAX_TURN_SECONDS


def test_the_limit_has_bounds():
    limit = TurnLimit()
    turn_seconds(limit, 1e-9)
    assert limit.max_records == MAX_RECORDS
    turn_seconds(limit, 10.0)
    assert limit.max_records == MIN_RECORDS


def test_turns_with_little_to_read_do_not_change_it():
    limit = TurnLimit()
    for _ in range(20):
        limit.update(0.001, is_reached=False)
    assert limit == TurnLimit()
