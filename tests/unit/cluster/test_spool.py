"""The spool loses no record without counting it, and never reuses a row number."""

from __future__ import annotations

from contextlib import suppress

import pytest

from sentinel.cluster.spool import MAX_ROW_BYTES, Spool
from sentinel.model.counters import Counters
from sentinel.model.record import Event, Record
from sentinel.store.database import connect, transaction
from sentinel.transport.batch_codec import encode_standalone

UNLIMITED = 1 << 30
DROPPED = ("sentinel_dropped_records_total", "spool")


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sentinel.db"


@pytest.fixture
def counters():
    return Counters()


@pytest.fixture
def spool(path, counters):
    return Spool(connect(path), counters)


def record(step, **values):
    return Record(
        "mine", 1, step, 100.0, values=values or {"loss": 1.0}, step_index=step, sequence=step
    )


def steps(spool, row=0, max_bytes=UNLIMITED):
    first, last, records = spool.read_after(row, "run", max_bytes)
    return first, last, [each.step for each in records]


def stored_bytes(spool):
    query = "select coalesce(sum(length(records)), 0) from spool"
    return spool.connection.execute(query).fetchone()[0]


def test_an_empty_spool_has_no_row(spool):
    assert spool.read_after(0, "run", UNLIMITED) == (1, 0, [])
    assert spool.read_after(7, "run", UNLIMITED) == (8, 7, [])
    assert spool.size_bytes == 0


def test_records_are_read_in_order_with_the_requested_run(spool):
    spool.append([record(1), record(2)])
    spool.append([record(3)])

    first, last, records = spool.read_after(0, "run", UNLIMITED)

    assert (first, last) == (1, 2)
    assert [(r.run, r.step, r.sequence) for r in records] == [("run", n, n) for n in (1, 2, 3)]


def test_a_read_is_limited_but_returns_at_least_one_row(spool):
    for step in (1, 2, 3):
        spool.append([record(step)])
    one = spool.size_bytes // 3

    assert steps(spool, 0, 2 * one) == (1, 2, [1, 2])
    assert steps(spool, 2, 1) == (3, 3, [3])


def test_row_numbers_of_deleted_rows_are_never_reused(spool):
    spool.append([record(1)])
    spool.append([record(2)])
    spool.delete_through(1)
    assert steps(spool) == (2, 2, [2])

    spool.delete_through(2)
    assert spool.size_bytes == stored_bytes(spool) == 0
    spool.append([record(3)])
    assert steps(spool) == (3, 3, [3])


def test_a_restarted_agent_has_the_same_spool_and_id(spool, path, counters):
    spool.append([record(1)])
    spool.append([record(2)])
    spool.delete_through(2)
    spool.append([record(3)])

    again = Spool(connect(path), counters)

    assert (again.spool_id, again.size_bytes) == (spool.spool_id, spool.size_bytes)
    assert steps(again) == (3, 3, [3])


def test_a_spool_in_a_new_database_has_another_id(spool, tmp_path, counters):
    assert Spool(connect(tmp_path / "other.db"), counters).spool_id != spool.spool_id


def test_a_full_spool_drops_and_counts_its_oldest_rows(path, counters):
    one = len(encode_standalone([record(1), record(2)]))
    spool = Spool(connect(path), counters, max_bytes=3 * one)

    for step in range(0, 10, 2):
        spool.append([record(step), record(step + 1)])

    assert steps(spool) == (3, 5, [4, 5, 6, 7, 8, 9])
    assert counters.values[DROPPED] == 4
    assert spool.size_bytes == stored_bytes(spool) <= spool.max_bytes


def test_a_row_larger_than_the_spool_is_dropped_and_counted(path, counters):
    spool = Spool(connect(path), counters, max_bytes=10)
    spool.append([record(1)])

    assert steps(spool) == (1, 0, [])
    assert (spool.size_bytes, counters.values[DROPPED]) == (0, 1)


def test_a_large_number_of_records_is_split_into_rows(spool):
    """As after an agent was suspended for a minute, when one message would be too large."""
    records = [record(n, **{f"value-{i}": float(n) for i in range(100)}) for n in range(3000)]
    assert len(encode_standalone(records)) > 4 * MAX_ROW_BYTES
    spool.append(records)

    row, read = 0, []
    while True:
        first, last, part = steps(spool, row, MAX_ROW_BYTES)
        if last < first:
            break
        assert first == row + 1
        assert len(part) < len(records) / 2
        row, read = last, read + part

    assert read == [*range(3000)]
    assert spool.size_bytes == stored_bytes(spool)


def test_a_single_record_is_never_split(spool):
    text = Record(
        "mine", 0, 1, 1.0, Event.SAMPLE, attributes={"completion": "x" * 2 * MAX_ROW_BYTES}
    )
    spool.append([record(1), text, record(2)])

    _, last, records = spool.read_after(0, "run", UNLIMITED)

    assert len(records) == 3
    assert records[1].attributes == text.attributes
    assert last == 3


def test_records_of_a_failed_transaction_are_not_in_the_spool(spool, path, counters):
    spool.append([record(1)])
    with suppress(OSError), transaction(spool.connection):
        spool.append([record(2)])
        spool.delete_through(1)
        raise OSError

    again = Spool(connect(path), counters)

    assert steps(again) == (1, 1, [1])
    assert again.size_bytes == stored_bytes(again)
