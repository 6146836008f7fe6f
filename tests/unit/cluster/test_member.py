"""Member: what a node says is taken once, in its order, and by our clock."""

from __future__ import annotations

from math import inf, nan

import pytest
from support.message_stores import refusals

from sentinel.cluster.attempt_map import MAX_ATTEMPTS_KEPT
from sentinel.cluster.member import (
    MAX_FUTURE_SECONDS,
    MAX_STEP_INDEX_JUMP,
    Member,
    load_members,
    save_member,
)
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch
from sentinel.store.database import connect
from sentinel.transport.batch_codec import BatchMessage

NOW = 1_000_000.0
CARD = {"host": "b", "run": "r", "spool": "one"}


@pytest.fixture
def tally():
    return Counters()


@pytest.fixture
def member():
    made = Member("b/r")
    made.start_session(1, CARD, "run")
    return made


def step(number, rank=2, attempt=0, *, time=NOW, beat=None, sequence=None):
    beat = number if beat is None else beat
    sequence = number if sequence is None else sequence
    return Record("run", rank, number, time, attempt=attempt, step_index=beat, sequence=sequence)


def parcel(*records, first=1, last=None, clock=NOW):
    return BatchMessage(1, first, first if last is None else last, clock, records)


def steps(records):
    return [record.step for record in records]


def test_a_word_that_is_repeated_is_taken_once_and_counted(member, tally):
    member.accept_message(parcel(step(1), step(2)), NOW, tally)

    again = member.accept_message(parcel(step(1), step(2), step(3), first=2), NOW, tally)

    assert steps(again) == [3]
    assert refusals(tally) == {"repeated": 2.0}


def test_ranks_and_attempts_are_each_heard_by_themselves(member, tally):
    told = [step(1, rank, attempt) for attempt in (0, 1) for rank in (2, 3)]

    assert member.accept_message(parcel(*told), NOW, tally) == told


def test_words_that_are_not_numbered_are_all_taken(member, tally):
    told = [step(7, sequence=0), step(7, sequence=0)]

    assert member.accept_message(parcel(*told), NOW, tally) == told


def test_rows_that_never_came_are_counted(member, tally):
    member.accept_message(parcel(step(1), first=1, last=3), NOW, tally)
    member.accept_message(parcel(step(2), first=10, last=12), NOW, tally)

    assert member.last_row == 12
    assert refusals(tally) == {"gap": 6.0}


def test_a_parcel_of_nothing_moves_no_row(member, tally):
    member.accept_message(parcel(step(1), first=1, last=3), NOW, tally)
    member.accept_message(parcel(first=4, last=3), NOW, tally)

    assert member.last_row == 3


def test_the_same_spool_goes_on_and_another_one_begins_anew_with_what_was_heard(member, tally):
    member.accept_message(parcel(step(1), step(2), first=1, last=9), NOW, tally)
    member.start_session(2, CARD, "run")
    assert member.last_row == 9

    member.start_session(3, {**CARD, "spool": "two"}, "run")

    assert member.last_row == 0
    assert steps(member.accept_message(parcel(step(1), step(2), step(3)), NOW, tally)) == [3]


def test_what_was_heard_survives_the_head(member, tally, tmp_path):
    connection = connect(tmp_path / "sentinel.db")
    for record in member.accept_message(parcel(step(5), step(7, 3), first=1, last=4), NOW, tally):
        member.add_rank(record.attempt, record.rank)
    member.add_rank(0, 3, ended=True)
    save_member(connection, member)
    assert not member.has_unsaved_changes

    again = load_members(connection)["b/r"]

    assert (again.host, again.spool_id, again.last_row) == ("b", "one", 4)
    assert again.last_sequences == {(0, 2): 5, (0, 3): 7}
    assert again.unended_ranks(0) == [2]
    again.start_session(1, CARD, "run")
    assert steps(again.accept_message(parcel(step(5), step(6), first=5), NOW, tally)) == [6]


def test_a_step_of_the_far_future_is_refused(member, tally):
    member.accept_message(parcel(step(1)), NOW, tally)

    taken = member.accept_message(
        parcel(step(2, beat=2 + MAX_STEP_INDEX_JUMP), step(3), first=2), NOW, tally
    )

    assert steps(taken) == [3]
    assert refusals(tally) == {"future": 1.0}


def test_a_run_that_is_far_is_heard_by_a_head_that_begins_or_was_started_again(member, tally):
    far = 5 * MAX_STEP_INDEX_JUMP

    assert steps(member.accept_message(parcel(step(far), step(far + 1)), NOW, tally)) == [
        far,
        far + 1,
    ]


def test_a_run_that_went_on_for_days_without_its_head_is_heard_again(member, tally):
    member.accept_message(parcel(step(1)), NOW, tally)
    far = 5 * MAX_STEP_INDEX_JUMP

    assert steps(member.accept_message(parcel(step(far), first=1000), NOW, tally)) == [far]
    assert refusals(tally) == {"gap": 998.0}


def test_a_time_of_the_future_is_taken_for_now(member, tally):
    far, near = step(1, time=NOW + MAX_FUTURE_SECONDS + 1), step(2, time=NOW + 1)

    taken = member.accept_message(parcel(far, near), NOW, tally)

    assert [record.time for record in taken] == [NOW, NOW + 1]
    assert refusals(tally) == {"future": 1.0}


@pytest.mark.parametrize("off", [3600.0, -3600.0])
def test_a_clock_an_hour_apart_is_made_ours(member, tally, off):
    for number in range(1, 5):
        told = step(number, time=NOW + number - off)
        (taken,) = member.accept_message(
            parcel(told, first=number, clock=NOW + number - off + 0.25), NOW + number + 0.5, tally
        )
        assert taken.time == pytest.approx(NOW + number, abs=1.0)


def test_clocks_that_are_nearly_the_same_are_left_as_they_are(member, tally):
    told = step(1, time=NOW - 0.5)

    assert member.accept_message(parcel(told, clock=NOW - 3.0), NOW, tally) == [told]


@pytest.mark.parametrize("off", [3600.0, -3600.0])
def test_a_clock_that_steps_is_made_ours_again(member, tally, off):
    member.accept_message(parcel(step(1)), NOW, tally)
    times = []
    for number in range(2, 6):
        told = step(number, time=NOW + number - off)
        taken = member.accept_message(
            parcel(told, first=number, clock=NOW + number - off), NOW + number, tally
        )
        times += [record.time for record in taken]

    assert times[1:] == [NOW + number for number in range(3, 6)]


def test_a_parcel_that_was_under_way_for_a_minute_does_not_move_the_clock(member, tally):
    """An agent was stopped, the head's or the node's."""
    member.accept_message(parcel(step(1)), NOW, tally)

    late = member.accept_message(
        parcel(step(2, time=NOW + 1), first=2, clock=NOW + 1), NOW + 61, tally
    )
    soon = member.accept_message(
        parcel(step(3, time=NOW + 62), first=3, clock=NOW + 62), NOW + 62, tally
    )

    assert [record.time for record in late + soon] == [NOW + 1, NOW + 62]


@pytest.mark.parametrize("clock", [nan, inf, -inf])
def test_a_clock_that_is_none_spoils_no_other_time(member, tally, clock):
    member.accept_message(parcel(step(1)), NOW, tally)
    member.accept_message(parcel(step(2), first=2, clock=clock), NOW, tally)

    (taken,) = member.accept_message(
        parcel(step(3, time=NOW + 1), first=3, clock=NOW + 1), NOW + 1, tally
    )

    assert taken.time == NOW + 1


def test_of_a_run_that_begins_anew_for_ever_only_the_newest_is_remembered(member, tally):
    for attempt in range(1000):
        for record in member.accept_message(parcel(step(1, attempt=attempt)), NOW, tally):
            member.add_rank(record.attempt, record.rank)
            member.add_rank(attempt, 2, ended=True)

    assert len(member.last_sequences) <= MAX_ATTEMPTS_KEPT + 1
    assert len(member.ranks) == 2
    assert len(member.ended_by_attempt) <= 2
    assert steps(member.accept_message(parcel(step(1, attempt=999)), NOW, tally)) == []


def test_who_speaks_is_remembered_until_it_says_how_it_ended(member):
    member.add_rank(0, 2)
    member.add_rank(0, 3)
    member.add_rank(0, WHOLE_RUN)
    assert member.unended_ranks(0) == [2, 3]
    assert member.unended_ranks(1) == []

    member.add_rank(0, 2, ended=True)
    assert member.unended_ranks(0) == [3]


def test_before_its_first_tick_a_node_is_not_in_the_roll(member):
    assert member.node_heartbeat(0.0, lost=False) is None
    member.heartbeat = Record("run", WHOLE_RUN, 1, NOW, Event.HEARTBEAT)
    member.add_rank(0, 3)
    member.add_rank(0, 2)

    told = member.node_heartbeat(2.0, lost=True)

    assert (told.host, told.ranks, told.age, told.lost) == ("b", {2, 3}, 2.0, True)


def sheet(number=1, sequences=(1, 1), ranks=(2, 3), time=NOW):
    rows = tuple((float(rank),) for rank in ranks)
    times = (time,) * len(ranks)
    return RecordBatch("run", 0, number, number, ("loss",), ranks, times, sequences, rows)


def test_a_sheet_of_which_every_row_is_new_is_taken_whole(member, tally):
    member.accept_message(parcel(step(1), step(1, 3)), NOW, tally)

    assert member.accept_message(parcel(sheet(2, (2, 2)), first=2), NOW, tally) == [
        sheet(2, (2, 2))
    ]
    # Which is remembered.
    assert member.accept_message(parcel(sheet(2, (2, 2)), first=3), NOW, tally) == []
    assert refusals(tally) == {"repeated": 2.0}


def test_of_a_sheet_that_repeats_a_word_the_others_are_taken(member, tally):
    member.accept_message(parcel(step(5), step(4, 3)), NOW, tally)

    (taken,) = member.accept_message(parcel(sheet(5, (5, 5)), first=2), NOW, tally)

    assert (taken.rank, taken.step, taken.values) == (3, 5, {"loss": 3.0})
    assert refusals(tally) == {"repeated": 1.0}


def test_a_sheet_of_the_future_is_of_now(member, tally):
    member.accept_message(parcel(step(1), step(1, 3)), NOW, tally)

    taken = member.accept_message(parcel(sheet(2, (2, 2), time=NOW + 3600.0), first=2), NOW, tally)

    assert [record.time for record in taken] == [NOW, NOW]
    assert refusals(tally) == {"future": 2.0}


def test_a_sheet_of_a_node_whose_clock_is_off_is_shifted(member, tally):
    there = NOW - 3600.0
    member.accept_message(parcel(step(1), step(1, 3), clock=there), NOW, tally)

    (taken,) = member.accept_message(
        parcel(sheet(2, (2, 2), time=there), first=2, clock=there), NOW, tally
    )

    assert taken.times == (NOW, NOW)
