"""Spool: nothing of it is lost but what is counted, and its rows are numbered for ever."""

from __future__ import annotations

from contextlib import suppress

import pytest

from sentinel.cluster.spool import MAX_ROW_BYTES, Spool
from sentinel.model.counters import Counters
from sentinel.model.record import Event, Record
from sentinel.store.database import connect, transaction
from sentinel.transport.batch_codec import encode_standalone

ALL = 1 << 30
LOST = ("sentinel_dropped_records_total", "spool")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sentinel.db"


@pytest.fixture
def tally():
    return Counters()


@pytest.fixture
def spool(path, tally):
    return Spool(connect(path), tally)


def record(step, **values):
    return Record(
        "mine", 1, step, 100.0, values=values or {"loss": 1.0}, step_index=step, sequence=step
    )


def steps(spool, row=0, most=ALL):
    first, last, records = spool.read_after(row, "run", most)
    return first, last, [each.step for each in records]


def held(spool):
    query = "select coalesce(sum(length(records)), 0) from spool"
    return spool.connection.execute(query).fetchone()[0]


def test_an_empty_spool_has_no_row(spool):
    assert spool.read_after(0, "run", ALL) == (1, 0, [])
    assert spool.read_after(7, "run", ALL) == (8, 7, [])
    assert spool.size_bytes == 0


def test_what_was_put_comes_in_its_order_as_of_the_run_asked_for(spool):
    spool.append([record(1), record(2)])
    spool.append([record(3)])

    first, last, records = spool.read_after(0, "run", ALL)

    assert (first, last) == (1, 2)
    assert [(r.run, r.step, r.sequence) for r in records] == [("run", n, n) for n in (1, 2, 3)]


def test_what_is_asked_for_is_bounded_but_one_row_comes_at_least(spool):
    for step in (1, 2, 3):
        spool.append([record(step)])
    one = spool.size_bytes // 3

    assert steps(spool, 0, 2 * one) == (1, 2, [1, 2])
    assert steps(spool, 2, 1) == (3, 3, [3])


def test_what_is_forgotten_is_gone_and_its_numbers_never_come_again(spool):
    spool.append([record(1)])
    spool.append([record(2)])
    spool.delete_through(1)
    assert steps(spool) == (2, 2, [2])

    spool.delete_through(2)
    assert spool.size_bytes == held(spool) == 0
    spool.append([record(3)])
    assert steps(spool) == (3, 3, [3])


def test_the_next_agent_finds_it_as_it_was_under_the_same_name(spool, path, tally):
    spool.append([record(1)])
    spool.append([record(2)])
    spool.delete_through(2)
    spool.append([record(3)])

    again = Spool(connect(path), tally)

    assert (again.spool_id, again.size_bytes) == (spool.name, spool.size_bytes)
    assert steps(again) == (3, 3, [3])


def test_one_whose_database_was_lost_has_another_name(spool, tmp_path, tally):
    assert Spool(connect(tmp_path / "other.db"), tally).spool_id != spool.name


def test_of_a_full_spool_the_oldest_is_given_up_and_counted(path, tally):
    one = len(encode_standalone([record(1), record(2)]))
    spool = Spool(connect(path), tally, max_bytes=3 * one)

    for step in range(0, 10, 2):
        spool.append([record(step), record(step + 1)])

    assert steps(spool) == (3, 5, [4, 5, 6, 7, 8, 9])
    assert tally.values[LOST] == 4
    assert spool.size_bytes == held(spool) <= spool.max_bytes


def test_a_spool_smaller_than_what_is_put_gives_that_up_as_well(path, tally):
    spool = Spool(connect(path), tally, max_bytes=10)
    spool.append([record(1)])

    assert steps(spool) == (1, 0, [])
    assert (spool.size_bytes, tally.values[LOST]) == (0, 1)


def test_what_was_read_at_once_of_whole_rings_is_handed_over_piece_by_piece(spool):
    """An agent that was stopped for a minute; no head takes that in one piece."""
    told = [record(n, **{f"value-{i}": float(n) for i in range(100)}) for n in range(3000)]
    assert len(encode_standalone(told)) > 4 * MAX_ROW_BYTES
    spool.append(told)

    row, found = 0, []
    while True:
        first, last, some = steps(spool, row, MAX_ROW_BYTES)
        if last < first:
            break
        assert first == row + 1
        assert len(some) < len(told) / 2
        row, found = last, found + some

    assert found == [*range(3000)]
    assert spool.size_bytes == held(spool)


def test_one_record_is_never_split_however_large(spool):
    text = Record(
        "mine", 0, 1, 1.0, Event.SAMPLE, attributes={"completion": "x" * 2 * MAX_ROW_BYTES}
    )
    spool.append([record(1), text, record(2)])

    _, last, records = spool.read_after(0, "run", ALL)

    assert len(records) == 3
    assert records[1].attributes == text.attributes
    assert last == 3


def test_what_was_put_in_a_transaction_that_failed_is_not_in_it(spool, path, tally):
    spool.append([record(1)])
    with suppress(OSError), transaction(spool.connection):
        spool.append([record(2)])
        spool.delete_through(1)
        raise OSError

    again = Spool(connect(path), tally)

    assert steps(again) == (1, 1, [1])
    assert again.size_bytes == held(again)
