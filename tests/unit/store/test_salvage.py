"""Tests of what is copied from a damaged database: whatever is damaged, nothing raises."""

from __future__ import annotations

import random
import shutil
import sqlite3
from contextlib import closing

import pytest
from support.stored_runs import QUEUED, SENT, STEPS, sent_keys, write_run

from sentinel.notify import outbox
from sentinel.store import silences
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.journal import Journal
from sentinel.store.salvage import PAGE_SIZE, salvage


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """The database of a run; tests copy it."""
    path = tmp_path_factory.mktemp("stored") / "sentinel.db"
    write_run(path)
    return path


def root_page(path, name):
    with closing(sqlite3.connect(path)) as connection:
        query = "select rootpage from sqlite_schema where name = ?"
        return connection.execute(query, [name]).fetchone()[0]


def salvage_damaged(stored, folder, pages, content=None):
    """Salvage a copy of which these pages are overwritten; returns the new path and the result."""
    damaged, path = folder / "sentinel.db.corrupt-1", folder / "sentinel.db"
    shutil.copyfile(stored, damaged)
    with damaged.open("r+b") as file:
        for page in pages:
            file.seek((page - 1) * PAGE_SIZE)
            file.write(random.Random(page).randbytes(PAGE_SIZE) if content is None else content)
    before = damaged.read_bytes()
    connect(path).close()
    found = salvage(damaged, path)
    assert damaged.read_bytes() == before, "the damaged file is kept as it is"
    assert sorted(each.name for each in folder.iterdir()) == ["sentinel.db", damaged.name]
    return path, found


def read_all(path):
    """Everything that an agent reads when it starts; raises what that raises."""
    with closing(connect(path)) as connection:
        assert connection.execute("pragma quick_check").fetchall() == [("ok",)]
        journal, history = Journal(connection), History(connection)
        journal.positions()
        journal.load_snapshot()
        list(journal.entries_since_snapshot("run"))
        history.incidents()
        history.latest_records("run")
        silences.load_acks(connection)
        silences.active_silences(connection, 0.0)
        outbox.episodes(connection)
        outbox.requeue_interrupted(connection)
        return len(list(history.records("run")))


def test_everything_of_an_intact_database_is_copied(stored, tmp_path):
    path, found = salvage_damaged(stored, tmp_path, [])

    assert (found.lost_tables, found.has_state, found.text) == ([], True, "everything")
    assert read_all(path) == STEPS
    with closing(connect(path)) as connection:
        assert outbox.count_by_state(connection) == {
            ("webhook", "delivered"): SENT,
            ("webhook", "queued"): QUEUED,
        }
        # The order of rows decides which notification of a case is the oldest.
        numbers = connection.execute("select rowid from outbox order by created, rowid").fetchall()
        assert [number for (number,) in numbers] == list(range(1, SENT + QUEUED + 1))


def test_after_damage_to_the_schema_everything_is_copied(stored, tmp_path):
    path, found = salvage_damaged(stored, tmp_path, [1])

    assert (found.lost_tables, found.has_state) == ([], True)
    assert read_all(path) == STEPS


def test_without_the_table_sent_notifications_are_known_from_its_indices(stored, tmp_path):
    path, found = salvage_damaged(stored, tmp_path, [root_page(stored, "outbox")])

    assert found.lost_tables == ["outbox"]
    assert sent_keys(path) == sent_keys(stored)


def test_a_lost_leaf_costs_only_its_rows(stored, tmp_path):
    with closing(sqlite3.connect(stored)) as connection:
        query = "select pageno from dbstat where name = 'step' and pagetype = 'leaf' limit 1"
        try:
            leaf = connection.execute(query).fetchone()[0]
        except sqlite3.OperationalError:  # this build of SQLite has no `dbstat`
            leaf = root_page(stored, "step")
    path, found = salvage_damaged(stored, tmp_path, [leaf])

    assert found.lost_tables in (["step"], ["layout", "step"])
    if leaf != root_page(stored, "step"):
        assert found.has_state
        assert 0.5 * STEPS < read_all(path) < STEPS


@pytest.mark.parametrize("table", ["ring", "snapshot", "journal"])
def test_positions_and_state_are_copied_together_or_not_at_all(stored, tmp_path, table):
    path, found = salvage_damaged(stored, tmp_path, [root_page(stored, table)])

    assert not found.has_state
    assert "read again" in found.text
    with closing(connect(path)) as connection:
        rows = [
            connection.execute(f"select count(*) from {name}").fetchone()[0]
            for name in ("ring", "snapshot", "journal")
        ]
    assert rows == [0, 0, 0]
    assert sent_keys(path) == sent_keys(stored)


def test_without_any_history_the_rings_are_read_again(stored, tmp_path):
    _, found = salvage_damaged(stored, tmp_path, [root_page(stored, "step")])

    assert (found.lost_tables, found.has_state) == (["step"], False)


def test_of_a_file_that_is_no_database_nothing_is_copied(stored, tmp_path):
    pages = range(1, stored.stat().st_size // PAGE_SIZE + 1)
    path, found = salvage_damaged(stored, tmp_path, pages)

    assert (found.rows, found.has_state) == (0, False)
    assert read_all(path) == 0


@pytest.mark.fault("S6")
@pytest.mark.parametrize("content", [None, bytes(PAGE_SIZE)], ids=["random", "zeros"])
def test_after_damage_to_each_page_in_turn_an_agent_can_start(stored, tmp_path, content):
    """A sample of the pages; `test_after_random_damage_an_agent_can_start` has many more."""
    for page in range(1, stored.stat().st_size // PAGE_SIZE + 1, 6):
        (tmp_path / f"{page}").mkdir()
        path, _ = salvage_damaged(stored, tmp_path / f"{page}", [page], content)
        read_all(path)
        # All deliveries of the run are on one page of the table, and on others of its indices.
        assert sent_keys(path) == sent_keys(stored), page


@pytest.mark.full
@pytest.mark.fault("S6")
@pytest.mark.timeout(600)
def test_after_random_damage_an_agent_can_start(stored, tmp_path):
    """Files with up to 20 damaged pages, bytes and bits, some truncated."""
    random_ = random.Random(13)
    original = stored.read_bytes()
    for number in range(200):
        folder = tmp_path / f"{number}"
        folder.mkdir()
        content = bytearray(original)
        for _ in range(random_.randint(1, 20)):
            start = random_.randrange(len(content))
            size = min(random_.choice([1, 16, PAGE_SIZE, 3 * PAGE_SIZE]), len(content) - start)
            content[start : start + size] = random_.randbytes(size)
        del content[random_.choice([len(content), random_.randrange(len(content))]) :]
        (folder / "sentinel.db.corrupt-1").write_bytes(content)
        connect(folder / "sentinel.db").close()
        salvage(folder / "sentinel.db.corrupt-1", folder / "sentinel.db")
        read_all(folder / "sentinel.db")
        shutil.rmtree(folder)
