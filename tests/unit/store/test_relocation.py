"""The database of a run moves to shared memory and back without a lost or repeated row."""

from __future__ import annotations

import sqlite3
from contextlib import closing

import pytest

from sentinel.store import database, relocation
from sentinel.store.relocation import (
    begin_in_fallback,
    copy_to_fallback,
    copy_unopened_to_fallback,
    merge_into_home,
    trim_fallback,
)


@pytest.fixture
def home(tmp_path):
    (tmp_path / "home").mkdir()
    return tmp_path / "home" / "sentinel.db"


@pytest.fixture
def fallback(tmp_path):
    (tmp_path / "shm").mkdir()
    return tmp_path / "shm" / "sentinel.db"


def write(path, steps, silences=()):
    with closing(database.connect(path)) as connection:
        for step in steps:
            connection.execute(
                "insert into step(attempt, step, time, event, layout, vals)"
                " values(0, ?, 0.0, 'step', 1, x'')",
                (step,),
            )
        for author in silences:
            connection.execute(
                "insert into silence(detector, starts_at, ends_at, author, comment)"
                " values('x', 0.0, 1.0, ?, '')",
                (author,),
            )


def steps(path):
    with closing(database.connect(path)) as connection:
        return [step for (step,) in connection.execute("select step from step order by id")]


def authors(path):
    with closing(database.connect(path)) as connection:
        return [name for (name,) in connection.execute("select author from silence order by id")]


def test_what_is_added_in_shared_memory_is_appended_to_the_history(home, fallback, monkeypatch):
    monkeypatch.setattr(relocation, "MAX_HISTORY_ROWS", 2)
    write(home, range(5), ["ana"])
    with closing(database.connect(home)) as connection:
        copy_to_fallback(connection, fallback)
    assert (steps(fallback), authors(fallback)) == ([3, 4], ["ana"])
    write(fallback, [5, 6], ["bo"])

    for _ in range(2):
        merge_into_home(fallback, home)
        assert (steps(home), authors(home)) == (list(range(7)), ["ana", "bo"])


def test_a_deleted_database_is_copied_from_the_open_connection(home, fallback):
    write(home, range(3))
    with closing(database.connect(home)) as connection:
        for path in home.parent.iterdir():
            path.unlink()
        copy_to_fallback(connection, fallback)
    assert steps(fallback) == [0, 1, 2]

    merge_into_home(fallback, home)
    assert steps(home) == [0, 1, 2]


def test_the_write_ahead_log_of_a_killed_agent_is_copied_too(home, fallback):
    write(home, range(2))
    with closing(database.connect(home)) as connection:
        connection.execute("update step set time = 7.0")
        copy_unopened_to_fallback(home, fallback)

    with closing(database.connect(fallback)) as connection:
        assert connection.execute("select distinct time from step").fetchall() == [(7.0,)]


def test_a_database_that_could_not_be_continued_is_set_aside(home, fallback):
    write(home, [1, 2])
    write(fallback, [8])
    begin_in_fallback(fallback)

    for _ in range(2):
        merge_into_home(fallback, home)
    assert steps(home) == [8]
    (kept,) = home.parent.glob("sentinel.db.*[0-9]")
    assert steps(kept) == [1, 2]


def test_a_database_of_another_version_is_not_copied(home, fallback):
    write(home, [1])
    with closing(database.connect(home)) as connection:
        connection.execute("pragma user_version = 11")

    with pytest.raises(database.UnsupportedSchemaError, match="schema version 11"):
        copy_unopened_to_fallback(home, fallback)
    with pytest.raises(FileNotFoundError):
        copy_unopened_to_fallback(home.with_name("missing.db"), fallback)
    assert not fallback.exists()


def test_an_unreadable_database_in_the_home_directory_is_set_aside(home, fallback):
    write(fallback, [8], ["ana"])
    write(home, range(500))
    with home.open("r+b") as file:
        file.seek(4096)
        file.write(b"x" * (home.stat().st_size - 4096))

    for _ in range(2):
        merge_into_home(fallback, home)
    assert (steps(home), authors(home)) == ([8], ["ana"])
    assert len([*home.parent.glob("sentinel.db.*[0-9]")]) == 1


def test_a_database_of_a_later_version_in_the_home_directory_is_set_aside(home, fallback):
    write(fallback, [8])
    write(home, [1])
    with closing(database.connect(home)) as connection:
        connection.execute(f"pragma user_version={database.SCHEMA_VERSION + 1}")

    merge_into_home(fallback, home)
    assert steps(home) == [8]
    assert len([*home.parent.glob("sentinel.db.*[0-9]")]) == 1


def test_damage_in_shared_memory_leaves_the_home_directory_as_it_is(home, fallback):
    write(home, [1], ["ana"])
    fallback.write_bytes(b"no database")

    with pytest.raises(sqlite3.DatabaseError):
        merge_into_home(fallback, home)
    assert (steps(home), authors(home)) == ([1], ["ana"])
    assert not [*home.parent.glob("sentinel.db.*[0-9]")]


def test_shared_memory_keeps_the_newest_steps_and_what_is_rare(home, fallback, monkeypatch):
    monkeypatch.setattr(relocation, "MAX_SHARED_ROWS", 10)
    monkeypatch.setattr(relocation, "TRIMMED_AT_ONCE", 4)
    write(fallback, range(20))
    with closing(database.connect(fallback)) as connection:
        connection.execute("update step set event = 'save' where step = 0")
        merge_into_home(fallback, home)
        trim_fallback(connection)
        assert steps(fallback) == [0, *range(5, 20)]
        for _ in range(3):
            trim_fallback(connection)
        assert steps(fallback) == [0, *range(9, 20)]

    write(fallback, [20])
    merge_into_home(fallback, home)
    assert steps(home) == [*range(21)]
