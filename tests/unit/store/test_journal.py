"""Journal: input is kept until a snapshot of what it led to is, and not longer."""

from __future__ import annotations

from math import isnan, nan

import pytest

from sentinel.model.record import Event, Record
from sentinel.store.database import SCHEMA_VERSION, NewerSchemaError, connect
from sentinel.store.journal import Journal
from sentinel.transport.ring import RingCursor
from sentinel.transport.ring_position import ReadPosition


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sentinel.db"


@pytest.fixture
def journal(path):
    return Journal(connect(path))


def record(step, **values):
    return Record(
        "run", 1, step, 100.0, values=values, attributes={"a": "b"}, attempt=2, step_index=step
    )


def read(journal):
    return list(journal.entries_since_snapshot("run"))


def test_a_record_comes_back_as_it_was(journal):
    told = record(3, loss=1.5)
    journal.append([told])

    assert read(journal) == [told]


def test_not_a_number_comes_back(journal):
    journal.append([record(1, loss=nan)])

    assert isnan(read(journal)[0].values["loss"])


def test_every_event_comes_back(journal):
    journal.append([Record("run", -1, 0, 0.0, event) for event in Event])

    assert [told.event for told in read(journal)] == list(Event)


def test_what_is_newer_than_the_snapshot_is_fed_again(journal):
    journal.append([record(1)])
    journal.store_snapshot("state after 1")
    journal.append([record(2)])
    journal.append([record(3)])

    assert journal.state() == "state after 1"
    assert [r.step for r in read(journal)] == [2, 3]


def test_a_snapshot_makes_the_journal_behind_it_needless(journal):
    for step in range(5):
        journal.append([record(step)])
    journal.store_snapshot("a")
    journal.store_snapshot("b")

    assert read(journal) == []
    assert journal.connection.execute("select count(*) from input").fetchone() == (0,)


def test_numbers_go_on_after_the_journal_was_emptied(journal):
    """A row written after a snapshot is never taken for one before it."""
    journal.append([record(1)])
    journal.store_snapshot("a")
    journal.append([record(2)])

    assert [r.step for r in read(journal)] == [2]


def test_positions_come_back_with_their_names(journal):
    there = {"/a.ring": ReadPosition(RingCursor(64, 2), {"1": ["loss"]}, "died", 5.0)}
    journal.store_positions({"/a.ring": ReadPosition(RingCursor(8, 1))})
    journal.store_positions(there)

    assert journal.positions() == there


def test_a_database_of_a_later_version_is_refused_with_the_remedy(path):
    connect(path).execute(f"pragma user_version={SCHEMA_VERSION + 1}")

    with pytest.raises(NewerSchemaError, match="upgrade"):
        connect(path)
