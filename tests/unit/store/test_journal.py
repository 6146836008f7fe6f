"""Tests of the journal, which holds the input since the last snapshot."""

from __future__ import annotations

from contextlib import closing
from math import isnan, nan

import pytest

from sentinel.model.record import Event, Record
from sentinel.store import journal as journal_module
from sentinel.store.database import connect
from sentinel.store.journal import Journal
from sentinel.transport.ring import ReadPosition, RingCursor


@pytest.fixture
def journal(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as connection:
        yield Journal(connection)


def record(step, **values):
    return Record(
        "run", 1, step, 100.0, values=values, attributes={"a": "b"}, attempt=2, step_index=step
    )


def read(journal):
    return list(journal.entries_since_snapshot("run"))


def test_a_record_is_restored_unchanged(journal):
    entry = record(3, loss=1.5)
    journal.append([entry])

    assert read(journal) == [entry]


def test_nan_is_restored(journal):
    journal.append([record(1, loss=nan)])

    assert isnan(read(journal)[0].values["loss"])


def test_every_event_is_restored(journal):
    journal.append([Record("run", -1, 0, 0.0, event) for event in Event])

    assert [entry.event for entry in read(journal)] == list(Event)


def test_entries_after_the_snapshot_are_read(journal):
    journal.append([record(1)])
    journal.store_snapshot("state after 1")
    journal.append([record(2)])
    journal.append([record(3)])

    assert journal.load_snapshot() == "state after 1"
    assert [entry.step for entry in read(journal)] == [2, 3]


def test_a_snapshot_deletes_the_journal_before_it(journal):
    for step in range(5):
        journal.append([record(step)])
    journal.store_snapshot("a")
    journal.store_snapshot("b")

    assert read(journal) == []
    assert journal.connection.execute("select count(*) from journal").fetchone() == (0,)


def test_entries_after_an_emptied_journal_are_read(journal):
    journal.append([record(1)])
    journal.store_snapshot("a")
    journal.append([record(2)])

    assert [entry.step for entry in read(journal)] == [2]


def test_positions_are_restored_with_the_state_of_their_reader(journal):
    positions = {"/a.ring": ReadPosition(RingCursor(64, 2), {"1": ["loss"]}, "died", 5.0)}
    journal.store_positions({"/a.ring": ReadPosition(RingCursor(8, 1))})
    journal.store_positions(positions)

    assert journal.positions() == positions


def test_a_larger_state_is_stored_after_more_input(journal, monkeypatch):
    """Of many ranks, what waits for a step is as large as the step."""
    monkeypatch.setattr(journal_module, "MIN_JOURNAL_BYTES", 100)
    monkeypatch.setattr(journal_module, "MAX_JOURNAL_BYTES", 10_000)
    assert not journal.is_long

    for characters, expected in ((1, 100), (500, 8 * 500), (100_000, 10_000)):
        journal.store_snapshot("x" * characters)
        assert not journal.is_long
        while not journal.is_long:
            journal.append([record(1, loss=1.0)])
        assert expected <= journal.size < expected + 200
