"""Batches give the same combined records as the records of their ranks."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isnan, nan

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sentinel.aggregate.aligner import Aligner
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, coalesce, iter_records, pack_row

WORLD = 4
VALUES = st.sampled_from(
    [
        {"loss": 1.0, "grad_norm": 2.0},
        {"loss": 1.5, "grad_norm": 2.0},
        {"loss": nan, "grad_norm": inf},
        {"train/kl": 0.25, "global_step": 3.0},
        {"global_step": 3.0},
        {"objective/kl": 4.0, "weight": 2.0},
        {"loss": 2.0, "weight": 3.0},
        {"kl": 1.0, "kl_ref": 2.0},
        {},
    ]
)
RECORDS = st.lists(
    st.builds(
        Record,
        run=st.just("run"),
        rank=st.integers(0, WORLD - 1),
        step=st.integers(1, 3),
        time=st.integers(1, 9).map(float),
        event=st.sampled_from([*[Event.STEP] * 5, Event.EVAL]),
        values=VALUES,
        attributes=st.sampled_from([{}, {}, {}, {"loss": "logged"}]),
        step_index=st.sampled_from([0, 0, 0, -1]),
    ),
    max_size=10,
)


def started():
    aligner = Aligner()
    for rank in range(WORLD):
        values = {"world_size": float(WORLD), "local_world_size": float(WORLD)}
        start = Record("run", rank, 0, 0.5, Event.START, values, {"host": f"host{rank // 2}"})
        list(aligner.process(start))
    return aligner


def combined(aligner, entry):
    return [exact(record) for record in aligner.process(entry) if record.rank == WHOLE_RUN]


def exact(record):
    """The parts of a record with each NaN as text, so that equal records compare equal."""
    spread = {name: [*map(plain, fields_of(each))] for name, each in record.spread.items()}
    values = [(name, plain(value)) for name, value in record.values.items()]
    return values, spread, replace(record, values={}, spread={})


def fields_of(spread):
    return [getattr(spread, name) for name in spread.__slots__]


def plain(value):
    if isinstance(value, tuple):
        return [*map(plain, value)]
    return "nan" if isinstance(value, float) and isnan(value) else value


def combined_one_by_one(aligner, entry):
    """What the records of an entry complete one by one, if no step closes before the last of them.

    The first record of a batch may complete a step that still lacks the ranks after it.
    """
    is_open = (entry.step_index, 0) > aligner.steps.closed.last_key or (
        entry.step_index,
        0,
    ) in aligner.steps.pending
    completed = [combined(aligner, record) for record in iter_records([entry])]
    assume(not (is_open and any(completed[:-1])))
    return [record for each in completed for record in each]


@given(st.lists(RECORDS, max_size=6), st.integers(0, 12))
def test_batches_give_the_same_as_their_records(batches, seconds):
    by_batch, by_record = started(), started()

    for at, batch in enumerate(batches, 1):
        entries = coalesce([replace(record, step_index=record.step_index + at) for record in batch])
        as_batches = [record for entry in entries for record in combined(by_batch, entry)]
        alone = [record for entry in entries for record in combined_one_by_one(by_record, entry)]
        assert sorted(as_batches, key=repr) == sorted(alone, key=repr)
        heartbeat = Record("run", WHOLE_RUN, 0, float(at * seconds), Event.HEARTBEAT)
        assert combined(by_batch, heartbeat) == combined(by_record, heartbeat)
    assert by_batch.counters.values == by_record.counters.values
    assert (by_batch.steps.membership.step_index_by_rank, by_batch.steps.membership.started) == (
        by_record.steps.membership.step_index_by_rank,
        by_record.steps.membership.started,
    )


def batch_of(step, **columns):
    (first, *_) = columns.values()
    ranks = tuple(range(len(first)))
    matrix = b"".join(map(pack_row, zip(*columns.values(), strict=True)))
    sequences = (step,) * len(ranks)
    return RecordBatch(
        "run", 0, step, step, tuple(columns), ranks, (1.0,) * len(ranks), sequences, matrix
    )


def test_before_a_heartbeat_the_clock_is_the_time_of_the_first_row():
    aligner = Aligner()
    list(aligner.process(replace(batch_of(1, loss=[1.0, 2.0]), times=(5.0, 8.0))))

    assert aligner.now == 5.0


def test_ranks_that_first_report_in_the_batch_that_closes_a_step_are_missing_in_it():
    aligner = started()
    list(aligner.process(batch_of(1, loss=[1.0, 2.0])))
    # The ranks may have started long ago, so ranks that never reported are not awaited.
    list(aligner.process(Record("run", WHOLE_RUN, 0, 5.0, Event.HEARTBEAT)))

    (closed, _) = aligner.process(Record("run", WHOLE_RUN, 0, 20.0, Event.HEARTBEAT))
    assert (closed.values, closed.attributes.get("missing")) == ({"loss": 1.5}, None)

    list(aligner.process(batch_of(2, loss=[1.0, 2.0])))
    (closed,) = aligner.process(batch_of(3, loss=[1.0] * 4))
    assert (closed.values, closed.attributes["missing"]) == ({"loss": 1.5}, "2,3")


def test_two_batches_of_one_step_give_one_record():
    aligner = started()
    entries = [batch_of(1, loss=[1.0, 2.0, 3.0, 4.0]), batch_of(1, grad_norm=[5.0, 5.0, 5.0, 6.0])]

    assert [record for each in entries for record in aligner.process(each)] == []
    (record,) = aligner.process(batch_of(2, loss=[1.0] * WORLD))

    assert record.values == {"loss": 2.5, "grad_norm": 6.0}
    assert record.spread["grad_norm"].mismatch.differing_ranks == ((3, 6.0),)
    assert record.attributes["host/3"] == "host1"


def test_rank_0_may_log_more_signals_than_the_others():
    aligner = started()
    list(aligner.process(batch_of(1, loss=[1.0, 2.0, 3.0, 4.0])))
    list(
        aligner.process(
            Record("run", 0, 1, 1.0, values={"reward": 0.5, "train/kl": 0.1}, step_index=1)
        )
    )

    (record,) = aligner.process(batch_of(2, loss=[1.0] * WORLD))

    assert record.values == {"loss": 2.5, "reward": 0.5, "kl_ref": 0.1}
    assert [spread.count for spread in record.spread.values()] == [4, 1, 1]
    assert record.attributes["kl_ref"] == "train/kl"


def test_ranks_of_a_batch_are_no_longer_lost():
    aligner = started()
    heartbeat = Record("run", WHOLE_RUN, 0, 1.0, Event.HEARTBEAT, attributes={"lost_ranks": "2,3"})
    list(aligner.process(heartbeat))
    assert aligner.steps.membership.lost == {2, 3}

    list(aligner.process(batch_of(1, loss=[1.0] * WORLD)))

    assert aligner.steps.membership.lost == set()


def test_a_batch_of_an_old_attempt_is_dropped_and_counted():
    aligner = started()
    list(aligner.process(Record("run", 0, 0, 2.0, Event.START, attempt=1)))

    assert [*aligner.process(batch_of(1, loss=[1.0] * WORLD))] == []
    assert aligner.counters.values["sentinel_dropped_records_total", "old_attempt"] == WORLD


@pytest.mark.parametrize("late", [1, 2])
def test_a_batch_for_a_closed_step_reports_new_signals_only(late):
    aligner = started()
    for step in (1, 2, 3):
        list(aligner.process(batch_of(step, loss=[1.0] * WORLD)))

    records = [*aligner.process(batch_of(late, loss=[7.0] * WORLD, reward=[0.5] * WORLD))]

    assert [(record.step, record.values) for record in records] == [(late, {"reward": 0.5})]
    assert aligner.counters.values["sentinel_dropped_records_total", "late"] == WORLD - 1
