"""Ranks heard by the sheet are combined as if each had been heard alone."""

from __future__ import annotations

from dataclasses import replace
from math import inf, isnan, nan

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from sentinel.aggregate.aligner import Aligner
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import RecordBatch, coalesce, iter_records

WORLD = 4
WORDS = st.sampled_from(
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
SAID = st.lists(
    st.builds(
        Record,
        run=st.just("run"),
        rank=st.integers(0, WORLD - 1),
        step=st.integers(1, 3),
        time=st.integers(1, 9).map(float),
        event=st.sampled_from([*[Event.STEP] * 5, Event.EVAL]),
        values=WORDS,
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
    """A record with every NaN as a word, so that it is the same as its like."""
    spread = {name: [*map(plain, vars_of(each))] for name, each in record.spread.items()}
    values = [(name, plain(value)) for name, value in record.values.items()]
    return values, spread, replace(record, values={}, spread={})


def vars_of(spread):
    return [getattr(spread, name) for name in spread.__slots__]


def plain(value):
    return "nan" if isinstance(value, float) and isnan(value) else value


def combined_one_by_one(aligner, entry):
    """What comes of an entry's records alone, if no step closes before the last of them.

    The first of a sheet may complete a step that those after it would still have been named in.
    """
    is_open = (entry.step_index, 0) > aligner.closed_steps.last_key or (
        entry.step_index,
        0,
    ) in aligner.pending_steps
    told = [combined(aligner, record) for record in iter_records([entry])]
    assume(not (is_open and any(told[:-1])))
    return [record for each in told for record in each]


@given(st.lists(SAID, max_size=6), st.integers(0, 12))
def test_what_comes_of_sheets_is_what_comes_of_their_records(batches, seconds):
    read, heard = started(), started()

    for at, batch in enumerate(batches, 1):
        entries = coalesce([replace(record, step_index=record.step_index + at) for record in batch])
        by_sheet = [record for entry in entries for record in combined(read, entry)]
        alone = [record for entry in entries for record in combined_one_by_one(heard, entry)]
        assert sorted(by_sheet, key=repr) == sorted(alone, key=repr)
        tick = Record("run", WHOLE_RUN, 0, float(at * seconds), Event.HEARTBEAT)
        assert combined(read, tick) == combined(heard, tick)
    assert read.counters.values == heard.counters.values
    assert (read.membership.step_index_by_rank, read.membership.started) == (
        heard.membership.step_index_by_rank,
        heard.membership.started,
    )


def sheet(step, **columns):
    (first, *_) = columns.values()
    ranks = tuple(range(len(first)))
    told = tuple(zip(*columns.values(), strict=True))
    numbers = (step,) * len(ranks)
    return RecordBatch(
        "run", 0, step, step, tuple(columns), ranks, (1.0,) * len(ranks), numbers, told
    )


def test_until_a_tick_it_is_as_late_as_the_first_row_says():
    aligner = Aligner()
    list(aligner.process(replace(sheet(1, loss=[1.0, 2.0]), times=(5.0, 8.0))))

    assert aligner.now == 5.0


def test_who_speaks_first_on_a_sheet_that_closes_a_step_is_missing_there():
    aligner = started()
    list(aligner.process(sheet(1, loss=[1.0, 2.0])))
    # They may have begun long ago, so nobody waits for those who never spoke.
    list(aligner.process(Record("run", WHOLE_RUN, 0, 5.0, Event.HEARTBEAT)))

    (closed, _) = aligner.process(Record("run", WHOLE_RUN, 0, 20.0, Event.HEARTBEAT))
    assert (closed.values, closed.attributes.get("missing")) == ({"loss": 1.5}, None)

    list(aligner.process(sheet(2, loss=[1.0, 2.0])))
    (closed,) = aligner.process(sheet(3, loss=[1.0] * 4))
    assert (closed.values, closed.attributes["missing"]) == ({"loss": 1.5}, "2,3")


def test_a_step_told_on_two_sheets_is_one_record_of_both():
    aligner = started()
    told = [sheet(1, loss=[1.0, 2.0, 3.0, 4.0]), sheet(1, grad_norm=[5.0, 5.0, 5.0, 6.0])]

    assert [record for each in told for record in aligner.process(each)] == []
    (record,) = aligner.process(sheet(2, loss=[1.0] * WORLD))

    assert record.values == {"loss": 2.5, "grad_norm": 6.0}
    assert record.spread["grad_norm"].mismatch.differing_ranks == ((3, 6.0),)
    assert record.attributes["host/3"] == "host1"


def test_rank_0_may_say_more_than_the_others():
    aligner = started()
    list(aligner.process(sheet(1, loss=[1.0, 2.0, 3.0, 4.0])))
    list(
        aligner.process(
            Record("run", 0, 1, 1.0, values={"reward": 0.5, "train/kl": 0.1}, step_index=1)
        )
    )

    (record,) = aligner.process(sheet(2, loss=[1.0] * WORLD))

    assert record.values == {"loss": 2.5, "reward": 0.5, "kl_ref": 0.1}
    assert [spread.count for spread in record.spread.values()] == [4, 1, 1]
    assert record.attributes["kl_ref"] == "train/kl"


def test_ranks_of_a_sheet_that_takes_steps_for_lost_ones_are_back():
    aligner = started()
    tick = Record("run", WHOLE_RUN, 0, 1.0, Event.HEARTBEAT, attributes={"lost_ranks": "2,3"})
    list(aligner.process(tick))
    assert aligner.membership.lost == {2, 3}

    list(aligner.process(sheet(1, loss=[1.0] * WORLD)))

    assert aligner.membership.lost == set()


def test_a_sheet_of_an_attempt_that_is_over_is_dropped_and_counted():
    aligner = started()
    list(aligner.process(Record("run", 0, 0, 2.0, Event.START, attempt=1)))

    assert [*aligner.process(sheet(1, loss=[1.0] * WORLD))] == []
    assert aligner.counters.values["sentinel_dropped_records_total", "old_attempt"] == WORLD


@pytest.mark.parametrize("late", [1, 2])
def test_a_sheet_on_a_closed_step_is_judged_where_it_is_news(late):
    aligner = started()
    for step in (1, 2, 3):
        list(aligner.process(sheet(step, loss=[1.0] * WORLD)))

    told = [*aligner.process(sheet(late, loss=[7.0] * WORLD, reward=[0.5] * WORLD))]

    assert [(record.step, record.values) for record in told] == [(late, {"reward": 0.5})]
    assert aligner.counters.values["sentinel_dropped_records_total", "late"] == WORLD - 1
