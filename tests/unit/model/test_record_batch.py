"""Merging records into batches loses none, and keeps the order of each rank."""

from __future__ import annotations

from collections import defaultdict

from hypothesis import given
from hypothesis import strategies as st

from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordBatch, coalesce, iter_records, pack_row

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


def group_by_rank(records):
    by_rank = defaultdict(list)
    for record in records:
        by_rank[record.rank].append((record, record.sequence))
    return by_rank


@given(RECORDS)
def test_the_records_of_each_rank_and_their_order_are_kept(records):
    entries = coalesce(records)

    assert group_by_rank(iter_records(entries)) == group_by_rank(records)


@given(RECORDS, st.integers(0, 12))
def test_batches_can_be_merged_again(records, cut):
    entries = coalesce([*coalesce(records[:cut]), *coalesce(records[cut:])])

    assert group_by_rank(iter_records(entries)) == group_by_rank(records)
    for entry in entries:
        assert isinstance(entry, Record) or len(entry.ranks) == len({*entry.ranks}) > 1


def test_records_of_one_step_with_the_same_names_are_one_batch():
    records = [step(rank, number, loss=rank + number) for rank in range(8) for number in (1, 2)]

    first, second = coalesce(records)

    assert (first.ranks, first.step, first.names) == (tuple(range(8)), 1, ("loss",))
    assert (second.ranks, second.step, second.rows[3]) == (tuple(range(8)), 2, pack_row([5.0]))
    assert first.times == tuple(1.0 + rank for rank in range(8))


def test_two_records_of_a_rank_are_in_two_batches():
    records = [step(0, loss=1.0), step(1, loss=1.0), step(0, loss=2.0), step(1, loss=2.0)]

    assert [entry.rows for entry in coalesce(records)] == [
        [pack_row([1.0])] * 2,
        [pack_row([2.0])] * 2,
    ]


def test_an_event_between_two_records_of_a_rank_stays_between_them():
    records = [step(0, loss=1.0), step(1, event=Event.SAVE), step(1, loss=1.0)]

    assert coalesce(records) == records


def test_a_record_of_the_whole_run_is_in_no_batch():
    records = [step(-1, loss=1.0), step(0, loss=1.0), step(1, loss=2.0)]

    whole, batch = coalesce(records)

    assert whole == records[0]
    assert batch.ranks == (0, 1)


def test_a_single_record_is_returned_unchanged():
    assert coalesce([step(0, loss=1.0), step(1, kl=1.0)]) == [step(0, loss=1.0), step(1, kl=1.0)]
    assert isinstance(coalesce([step(0, loss=1.0), step(1, loss=1.0)])[0], RecordBatch)
