"""A member accepts each record of its node once, in order, with times of the local clock."""

from __future__ import annotations

from math import inf, nan

import pytest
from support.message_stores import refusal_counts

from sentinel.cluster.attempt_map import MAX_ATTEMPTS_KEPT
from sentinel.cluster.member import MAX_FUTURE_SECONDS, MAX_STEP_INDEX_JUMP, Member
from sentinel.cluster.membership import load_members, save_members
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, pack_row
from sentinel.store.database import connect
from sentinel.transport.batch_codec import BatchMessage

NOW = 1_000_000.0
NODE_INFO = {"host": "b", "run": "r", "spool_id": "one"}


@pytest.fixture
def counters():
    return Counters()


@pytest.fixture
def member():
    member = Member("b/r")
    member.start_session(1, NODE_INFO, "run")
    return member


def step(number, rank=2, attempt=0, *, time=NOW, step_index=None, sequence=None):
    step_index = number if step_index is None else step_index
    sequence = number if sequence is None else sequence
    return Record(
        "run", rank, number, time, attempt=attempt, step_index=step_index, sequence=sequence
    )


def message(*records, first=1, last=None, sender_time=NOW):
    return BatchMessage(1, first, first if last is None else last, sender_time, records)


def steps(records):
    return [record.step for record in records]


def test_a_repeated_record_is_accepted_once_and_counted(member, counters):
    member.accept_message(message(step(1), step(2)), NOW, counters)

    again = member.accept_message(message(step(1), step(2), step(3), first=2), NOW, counters)

    assert steps(again) == [3]
    assert refusal_counts(counters) == {"repeated": 2.0}


def test_sequence_numbers_are_per_rank_and_attempt(member, counters):
    records = [step(1, rank, attempt) for attempt in (0, 1) for rank in (2, 3)]

    assert member.accept_message(message(*records), NOW, counters) == records


def test_records_without_a_sequence_number_are_all_accepted(member, counters):
    records = [step(7, sequence=0), step(7, sequence=0)]

    assert member.accept_message(message(*records), NOW, counters) == records


def test_missing_rows_are_counted(member, counters):
    member.accept_message(message(step(1), first=1, last=3), NOW, counters)
    member.accept_message(message(step(2), first=10, last=12), NOW, counters)

    assert member.last_row == 12
    assert refusal_counts(counters) == {"gap": 6.0}


def test_a_message_without_rows_does_not_change_the_last_row(member, counters):
    member.accept_message(message(step(1), first=1, last=3), NOW, counters)
    member.accept_message(message(first=4, last=3), NOW, counters)

    assert member.last_row == 3


def test_a_new_spool_restarts_the_rows_but_not_the_sequence_numbers(member, counters):
    member.accept_message(message(step(1), step(2), first=1, last=9), NOW, counters)
    member.start_session(2, NODE_INFO, "run")
    assert member.last_row == 9

    member.start_session(3, {**NODE_INFO, "spool_id": "two"}, "run")

    assert member.last_row == 0
    assert steps(member.accept_message(message(step(1), step(2), step(3)), NOW, counters)) == [3]


def test_a_member_survives_a_restart_of_the_head(member, counters, tmp_path):
    connection = connect(tmp_path / "sentinel.db")
    for record in member.accept_message(
        message(step(5), step(7, 3), first=1, last=4), NOW, counters
    ):
        member.add_rank(record.attempt, record.rank)
    member.add_rank(0, 3, has_ended=True)
    save_members(connection, [member])
    assert not member.has_unsaved_changes

    again = load_members(connection)["b/r"]

    assert (again.host, again.spool_id, again.last_row) == ("b", "one", 4)
    assert again.last_sequences == {(0, 2): 5, (0, 3): 7}
    assert again.unended_ranks(0) == [2]
    again.start_session(1, NODE_INFO, "run")
    assert steps(again.accept_message(message(step(5), step(6), first=5), NOW, counters)) == [6]


def test_a_jump_of_the_step_index_is_refused(member, counters):
    member.accept_message(message(step(1)), NOW, counters)

    accepted = member.accept_message(
        message(step(2, step_index=2 + MAX_STEP_INDEX_JUMP), step(3), first=2), NOW, counters
    )

    assert steps(accepted) == [3]
    assert refusal_counts(counters) == {"future": 1.0}


def test_a_new_session_may_begin_at_any_step_index(member, counters):
    far = 5 * MAX_STEP_INDEX_JUMP

    assert steps(member.accept_message(message(step(far), step(far + 1)), NOW, counters)) == [
        far,
        far + 1,
    ]


def test_a_jump_of_the_step_index_after_a_gap_is_accepted(member, counters):
    member.accept_message(message(step(1)), NOW, counters)
    far = 5 * MAX_STEP_INDEX_JUMP

    assert steps(member.accept_message(message(step(far), first=1000), NOW, counters)) == [far]
    assert refusal_counts(counters) == {"gap": 998.0}


def test_a_time_in_the_future_becomes_now(member, counters):
    future, near = step(1, time=NOW + MAX_FUTURE_SECONDS + 1), step(2, time=NOW + 1)

    accepted = member.accept_message(message(future, near), NOW, counters)

    assert [record.time for record in accepted] == [NOW, NOW + 1]
    assert refusal_counts(counters) == {"future": 1.0}


@pytest.mark.parametrize("offset", [3600.0, -3600.0])
def test_clock_skew_of_an_hour_is_corrected(member, counters, offset):
    for number in range(1, 5):
        record = step(number, time=NOW + number - offset)
        (accepted,) = member.accept_message(
            message(record, first=number, sender_time=NOW + number - offset + 0.25),
            NOW + number + 0.5,
            counters,
        )
        assert accepted.time == pytest.approx(NOW + number, abs=1.0)


def test_small_clock_skew_is_not_corrected(member, counters):
    record = step(1, time=NOW - 0.5)

    assert member.accept_message(message(record, sender_time=NOW - 3.0), NOW, counters) == [record]


@pytest.mark.parametrize("offset", [3600.0, -3600.0])
def test_a_step_of_the_clock_is_corrected(member, counters, offset):
    member.accept_message(message(step(1)), NOW, counters)
    times = []
    for number in range(2, 6):
        record = step(number, time=NOW + number - offset)
        accepted = member.accept_message(
            message(record, first=number, sender_time=NOW + number - offset), NOW + number, counters
        )
        times += [record.time for record in accepted]

    assert times[1:] == [NOW + number for number in range(3, 6)]


def test_a_delayed_message_does_not_change_the_clock_skew(member, counters):
    """As after one of the two agents was suspended."""
    member.accept_message(message(step(1)), NOW, counters)

    delayed = member.accept_message(
        message(step(2, time=NOW + 1), first=2, sender_time=NOW + 1), NOW + 61, counters
    )
    next_one = member.accept_message(
        message(step(3, time=NOW + 62), first=3, sender_time=NOW + 62), NOW + 62, counters
    )

    assert [record.time for record in delayed + next_one] == [NOW + 1, NOW + 62]


@pytest.mark.parametrize("clock", [nan, inf, -inf])
def test_a_clock_that_is_not_finite_changes_no_other_time(member, counters, clock):
    member.accept_message(message(step(1)), NOW, counters)
    member.accept_message(message(step(2), first=2, sender_time=clock), NOW, counters)

    (accepted,) = member.accept_message(
        message(step(3, time=NOW + 1), first=3, sender_time=NOW + 1), NOW + 1, counters
    )

    assert accepted.time == NOW + 1


def test_only_the_newest_attempts_are_stored(member, counters):
    for attempt in range(1000):
        for record in member.accept_message(message(step(1, attempt=attempt)), NOW, counters):
            member.add_rank(record.attempt, record.rank)
            member.add_rank(attempt, 2, has_ended=True)

    assert len(member.last_sequences) <= MAX_ATTEMPTS_KEPT + 1
    assert len(member.ranks_by_attempt) == 2
    assert len(member.ended_by_attempt) <= 2
    assert steps(member.accept_message(message(step(1, attempt=999)), NOW, counters)) == []


def test_a_rank_is_unended_until_its_stop(member):
    member.add_rank(0, 2)
    member.add_rank(0, 3)
    member.add_rank(0, WHOLE_RUN)
    assert member.unended_ranks(0) == [2, 3]
    assert member.unended_ranks(1) == []

    member.add_rank(0, 2, has_ended=True)
    assert member.unended_ranks(0) == [3]


def test_a_node_has_no_part_in_the_run_heartbeat_before_its_first(member):
    assert member.node_heartbeat(0.0, is_lost=False) is None
    member.heartbeat = Record("run", WHOLE_RUN, 1, NOW, Event.HEARTBEAT)
    member.add_rank(0, 3)
    member.add_rank(0, 2)

    part = member.node_heartbeat(2.0, is_lost=True)

    assert (part.host, part.ranks, part.age_seconds, part.is_lost) == ("b", {2, 3}, 2.0, True)


def record_batch(number=1, sequences=(1, 1), ranks=(2, 3), time=NOW):
    matrix = pack_row(ranks)
    times = (time,) * len(ranks)
    return RecordBatch("run", 0, number, number, ("loss",), ranks, times, sequences, matrix)


def test_a_batch_of_new_rows_stays_a_batch(member, counters):
    member.accept_message(message(step(1), step(1, 3)), NOW, counters)

    assert member.accept_message(message(record_batch(2, (2, 2)), first=2), NOW, counters) == [
        record_batch(2, (2, 2))
    ]
    assert member.accept_message(message(record_batch(2, (2, 2)), first=3), NOW, counters) == []
    assert refusal_counts(counters) == {"repeated": 2.0}


def test_the_new_rows_of_a_batch_with_a_repeated_row_are_accepted(member, counters):
    member.accept_message(message(step(5), step(4, 3)), NOW, counters)

    (accepted,) = member.accept_message(message(record_batch(5, (5, 5)), first=2), NOW, counters)

    assert (accepted.rank, accepted.step, accepted.values) == (3, 5, {"loss": 3.0})
    assert refusal_counts(counters) == {"repeated": 1.0}


def test_times_of_a_batch_in_the_future_become_now(member, counters):
    member.accept_message(message(step(1), step(1, 3)), NOW, counters)

    accepted = member.accept_message(
        message(record_batch(2, (2, 2), time=NOW + 3600.0), first=2), NOW, counters
    )

    assert [record.time for record in accepted] == [NOW, NOW]
    assert refusal_counts(counters) == {"future": 2.0}


def test_times_of_a_batch_are_corrected_for_clock_skew(member, counters):
    there = NOW - 3600.0
    member.accept_message(message(step(1), step(1, 3), sender_time=there), NOW, counters)

    (accepted,) = member.accept_message(
        message(record_batch(2, (2, 2), time=there), first=2, sender_time=there), NOW, counters
    )

    assert accepted.times == (NOW, NOW)
