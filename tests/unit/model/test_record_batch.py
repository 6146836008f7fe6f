"""Sheet: the same records in fewer entries, and nobody's words in another order."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordBatch, coalesce, iter_records

RECORDS = st.lists(
    st.builds(
        Record,
        run=st.just("run"),
        rank=st.integers(-1, 2),
        step=st.integers(1, 2),
        time=st.floats(0, 9),
        event=st.sampled_from([*[Event.STEP] * 6, Event.SAVE, Event.HEARTBEAT]),
        values=st.sampled_from([{"loss": 1.0}, {"loss": 1.0, "kl": 2.0}, {}]),
        attributes=st.sampled_from([{}, {}, {}, {"a": "b"}]),
        attempt=st.integers(0, 1),
        step_index=st.integers(1, 2),
        sequence=st.integers(0, 5),
    ),
    max_size=12,
)


def step(rank, number=1, event=Event.STEP, **values):
    return Record(
        "run", rank, number, 1.0 + rank, event, values, step_index=number, sequence=number
    )


def by_rank(records):
    told = defaultdict(list)
    for record in records:
        told[record.rank].append((record, record.sequence))
    return told


@given(RECORDS)
def test_every_rank_says_the_same_in_the_same_order(records):
    entries = coalesce(records)

    assert by_rank(iter_records(entries)) == by_rank(records)


@given(RECORDS, st.integers(0, 12))
def test_what_was_gathered_may_be_gathered_further(records, cut):
    entries = coalesce([*coalesce(records[:cut]), *coalesce(records[cut:])])

    assert by_rank(iter_records(entries)) == by_rank(records)
    for entry in entries:
        assert isinstance(entry, Record) or len(entry.ranks) == len({*entry.ranks}) > 1


def test_ranks_that_say_the_same_of_a_step_are_on_one_sheet():
    told = [step(rank, number, loss=rank + number) for rank in range(8) for number in (1, 2)]

    first, second = coalesce(told)

    assert (first.ranks, first.step, first.names) == (tuple(range(8)), 1, ("loss",))
    assert (second.ranks, second.step, second.rows[3]) == (tuple(range(8)), 2, (5,))
    assert first.times == tuple(1.0 + rank for rank in range(8))


def test_who_says_a_thing_twice_is_on_two_sheets():
    told = [step(0, loss=1.0), step(1, loss=1.0), step(0, loss=2.0), step(1, loss=2.0)]

    assert [entry.rows for entry in coalesce(told)] == [((1.0,), (1.0,)), ((2.0,), (2.0,))]


def test_what_stands_between_two_words_of_a_rank_stays_between_them():
    told = [step(0, loss=1.0), step(1, event=Event.SAVE), step(1, loss=1.0)]

    assert coalesce(told) == told


def test_a_record_of_the_whole_run_is_on_no_sheet():
    told = [step(-1, loss=1.0), step(0, loss=1.0), step(1, loss=2.0)]

    whole, sheet = coalesce(told)

    assert whole == told[0]
    assert sheet.ranks == (0, 1)


def test_a_record_alone_stays_as_it_was():
    assert coalesce([step(0, loss=1.0), step(1, kl=1.0)]) == [step(0, loss=1.0), step(1, kl=1.0)]
    assert isinstance(coalesce([step(0, loss=1.0), step(1, loss=1.0)])[0], RecordBatch)
