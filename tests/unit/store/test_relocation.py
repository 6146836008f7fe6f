"""The database of a run is copied to shared memory and back without a lost or repeated row."""

from __future__ import annotations

import sqlite3
import subprocess
import sys
import threading
from contextlib import closing

import pytest

from sentinel.cluster.spool import Spool
from sentinel.model.counters import Counters
from sentinel.model.record import Event, Record
from sentinel.store import database, relocation
from sentinel.store.history import History
from sentinel.store.relocation import (
    begin_in_shared_memory,
    copy_to_home,
    copy_to_shared_memory,
    release_database,
)
from sentinel.store.retention import HistoryRetention

MIB = 1 << 20


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return tmp_path / "home" / "sentinel.db"


@pytest.fixture
def shared(tmp_path):
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm" / "sentinel.db"


def record(step, event=Event.STEP, **values):
    return Record("run", -1, step, float(step), event, values or {"loss": step / 2})


def write(path, steps, silences=()):
    with closing(database.connect(path)) as connection:
        history = History(connection)
        for step in steps:
            history._insert_record(record(step))
        for author in silences:
            connection.execute(
                "insert into silence(detector, starts_at, ends_at, author, comment)"
                " values('x', 0.0, 1.0, ?, '')",
                (author,),
            )


def steps(path):
    with closing(database.connect(path)) as connection:
        return [each.step for each in History(connection).records("run")]


def losses(path):
    with closing(database.connect(path)) as connection:
        return [each.values["loss"] for each in History(connection).records("run")]


def authors(path):
    with closing(database.connect(path)) as connection:
        return [name for (name,) in connection.execute("select author from silence order by id")]


def counts(connection):
    """Steps in blocks, steps in full, and the first step in a block."""
    in_blocks, first = connection.execute(
        "select sum(count), min(first_step) from block"
    ).fetchone()
    (in_full,) = connection.execute("select count(*) from step").fetchone()
    return in_blocks, in_full, first


def change(path, statement):
    with closing(database.connect(path)) as connection:
        connection.execute(statement)


def test_what_is_added_in_shared_memory_is_appended_to_the_history(home, shared, monkeypatch):
    monkeypatch.setattr(relocation, "MAX_HISTORY_ROWS", 2)
    write(home, range(5), ["ana"])
    with closing(database.connect(home)) as connection:
        copy_to_shared_memory(connection, shared, 0)
    assert (steps(shared), authors(shared)) == ([3, 4], ["ana"])
    write(shared, [5, 6], ["bo"])

    for _ in range(2):
        copy_to_home(shared, home)
        assert (steps(home), authors(home)) == (list(range(7)), ["ana", "bo"])
        assert losses(home) == [step / 2 for step in range(7)]


def test_a_copy_writes_what_differs_only(home, shared):
    write(shared, range(3), ["ana", "bo", "cy"])
    copy_to_home(shared, home)
    change(shared, "update silence set author = 'bob' where author = 'bo'")
    change(shared, "delete from silence where author = 'ana'")
    copy_to_home(shared, home)
    before = home.read_bytes()
    copy_to_home(shared, home)
    assert home.read_bytes() == before
    assert authors(home) == ["bob", "cy"]


def test_each_database_thins_its_own_history(home, shared):
    """The layouts of the blocks in one have numbers that the other uses for something else."""
    with closing(database.connect(shared)) as connection:
        history = History(connection)
        retention = HistoryRetention(history, 1000, MIB * 64)
        for step in range(2000):
            history._insert_record(record(step))
        copy_to_home(shared, home)
        retention.run_slice(60.0)
        with closing(database.connect(home)) as at_home:
            HistoryRetention(History(at_home), 500, MIB * 64).run_slice(60.0)
        for step in range(2000, 2100):
            history._insert_record(record(step, kl=float(step), reward=1.0))
        copy_to_home(shared, home)

    with closing(database.connect(home)) as connection:
        newest = [*History(connection).records("run")][-101:]
        assert [each.step for each in newest] == list(range(1999, 2100))
        assert newest[-1].values == {"kl": 2099.0, "reward": 1.0}
        assert newest[0].values == {"loss": 1999 / 2}
        assert counts(connection)[:2] == (32 * 46, 2100 - 32 * 46)


def test_what_was_thinned_before_it_could_be_copied_is_copied_in_blocks(home, shared):
    write(shared, range(10))
    copy_to_home(shared, home)
    write(shared, range(10, 3000))
    with closing(database.connect(shared)) as connection:
        HistoryRetention(History(connection), 1000, MIB * 64).run_slice(60.0)
    copy_to_home(shared, home)

    with closing(database.connect(home)) as connection:
        assert counts(connection) == (32 * 62, 3000 - 32 * 62, 0)


def test_steps_that_are_read_again_after_damage_replace_the_former_ones(home, shared):
    write(shared, range(10))
    copy_to_home(shared, home)
    change(shared, "delete from step where step >= 6")
    write(shared, [7, 8])
    copy_to_home(shared, home)
    assert steps(home) == [0, 1, 2, 3, 4, 5, 7, 8]


def test_a_database_without_a_record_in_common_is_set_aside(home, shared):
    write(home, range(5), ["ana"])
    write(shared, [70, 71])
    for _ in range(2):
        copy_to_home(shared, home)
    assert (steps(home), authors(home)) == ([70, 71], [])
    (kept,) = home.parent.glob("sentinel.db.*[0-9]")
    assert steps(kept) == list(range(5))


def test_records_of_layers_that_were_thinned_are_deleted(home, shared):
    with closing(database.connect(shared)) as connection:
        for step in range(6):
            History(connection)._insert_record(record(step, Event.LAYERS, norm=1.0))
        copy_to_home(shared, home)
        connection.execute("delete from step where step in (1, 3)")
        copy_to_home(shared, home)
    assert steps(home) == [0, 2, 4, 5]


def test_a_deleted_database_is_copied_from_the_open_connection(home, shared):
    write(home, range(3))
    with closing(database.connect(home)) as connection:
        for path in home.parent.iterdir():
            path.unlink()
        copy_to_shared_memory(connection, shared, MIB)
    assert steps(shared) == [0, 1, 2]

    copy_to_home(shared, home)
    assert steps(home) == [0, 1, 2]


def test_a_database_that_could_not_be_continued_is_set_aside(home, shared):
    write(home, [1, 2])
    write(shared, [8])
    begin_in_shared_memory(shared)

    for _ in range(2):
        copy_to_home(shared, home)
    assert steps(home) == [8]
    (kept,) = home.parent.glob("sentinel.db.*[0-9]")
    assert steps(kept) == [1, 2]


def test_an_unreadable_database_in_the_home_directory_is_set_aside(home, shared):
    write(shared, [8], ["ana"])
    write(home, range(500))
    with home.open("r+b") as file:
        file.seek(4096)
        file.write(b"x" * (home.stat().st_size - 4096))

    for _ in range(2):
        copy_to_home(shared, home)
    assert (steps(home), authors(home)) == ([8], ["ana"])
    assert len([*home.parent.glob("sentinel.db.*[0-9]")]) == 1


def test_a_database_of_a_later_version_in_the_home_directory_is_set_aside(home, shared):
    write(shared, [8])
    write(home, [1])
    change(home, f"pragma user_version={database.SCHEMA_VERSION + 1}")

    copy_to_home(shared, home)
    assert steps(home) == [8]
    assert len([*home.parent.glob("sentinel.db.*[0-9]")]) == 1


def test_damage_in_shared_memory_leaves_the_home_directory_as_it_is(home, shared):
    write(home, [1], ["ana"])
    shared.write_bytes(b"no database")

    with pytest.raises(sqlite3.DatabaseError):
        copy_to_home(shared, home)
    assert (steps(home), authors(home)) == ([1], ["ana"])
    assert not [*home.parent.glob("sentinel.db.*[0-9]")]


def spool(path):
    with closing(database.connect(path)) as connection:
        return connection.execute("select id, number, records from spool order by id").fetchall()


@pytest.mark.fault("A28")
def test_a_database_is_released_from_the_locks_of_a_process(shared):
    write(shared, [1])
    code = (
        "import sqlite3, sys; found = sqlite3.connect(sys.argv[1], isolation_level=None);"
        "found.execute('begin immediate'); print(flush=True); sys.stdin.read()"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, shared], stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as owner:
        owner.stdout.readline()
        release_database(shared)
        write(shared, [2])
        owner.kill()

    assert steps(shared) == [1, 2]


def test_the_spool_is_appended_and_its_oldest_rows_are_deleted(home, shared):
    with closing(database.connect(shared)) as connection:
        rows = Spool(connection, Counters())
        for each in range(4):
            rows.append([record(each)])
        copy_to_home(shared, home)
        rows.delete_through(2)
        rows.append([record(4)])
        copy_to_home(shared, home)
        assert [row for row, *_ in spool(home)] == [3, 4, 5]
        assert spool(home) == spool(shared)
        rows.delete_through(5)
        copy_to_home(shared, home)
        assert spool(home) == []
        rows.append([record(5)])
        copy_to_home(shared, home)

    assert [row for row, *_ in spool(home)] == [6]


def test_rows_of_another_spool_are_replaced(home, shared):
    for path, first in ((home, 0), (shared, 100)):
        with closing(database.connect(path)) as connection:
            rows = Spool(connection, Counters())
            for step in range(first, first + 5):
                rows.append([record(step)])
    copy_to_home(shared, home)
    assert spool(home) == spool(shared)


def test_a_spool_that_may_be_old_begins_anew(shared):
    """Its head knows later rows of the former one, and would refuse new ones of their numbers."""
    with closing(database.connect(shared)) as connection:
        rows = Spool(connection, Counters())
        for each in range(5):
            rows.append([record(each)])
        rows.delete_through(3)
        former = rows.spool_id
    kept = [records for _, _, records in spool(shared)]
    relocation.restart_spool(shared)
    with closing(database.connect(shared)) as connection:
        rows = Spool(connection, Counters())
        rows.append([record(9)])
        assert rows.spool_id != former

    assert [row for row, *_ in spool(shared)] == [1, 2, 3]
    assert [records for _, _, records in spool(shared)][:2] == kept


@pytest.mark.fault("S4")
@pytest.mark.parametrize("at", ["_append_history", "_make_equal"])
def test_a_copy_that_hangs_in_its_transaction_locks_nothing(home, shared, monkeypatch, at):
    """The disk may stop to respond at any moment, for any time."""
    write(shared, range(10), ["ana"])
    reached, answers = threading.Event(), threading.Event()
    original = getattr(relocation, at)

    def hang(*arguments):
        reached.set()
        assert answers.wait(60.0)
        return original(*arguments)

    with monkeypatch.context() as patched:
        patched.setattr(relocation, at, hang)
        copying = threading.Thread(target=copy_to_home, args=(shared, home))
        copying.start()
        assert reached.wait(60.0)
        try:
            with closing(sqlite3.connect(shared, timeout=0.0, isolation_level=None)) as connection:
                connection.execute("begin immediate")
                connection.execute("update silence set author = 'bo'")
                connection.execute("commit")
                (busy, *_) = connection.execute("pragma wal_checkpoint(truncate)").fetchone()
        finally:
            answers.set()
            copying.join()

        assert busy == 0

    assert authors(home) == ["ana"]
    copy_to_home(shared, home)
    assert authors(home) == ["bo"]
