"""Sample files: each is read once it is whole, and by one agent only."""

from __future__ import annotations

import errno
import os

import pytest
from support.sample_files import Watch, trl, verl

from sentinel.readers import sample_files as sample_source
from sentinel.readers.sample_files import SCAN_INTERVAL_SECONDS


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_a_file_is_read_once_and_again_only_if_it_is_written_anew(folder):
    watch = Watch(folder)
    verl(folder, 1)
    assert len(watch.settled()) == 2
    assert watch.settled() == []

    verl(folder, 1, size=3)
    assert len(watch.settled()) == 3


def test_a_file_is_left_until_it_has_stopped_growing(folder):
    watch = Watch(folder)
    verl(folder, 1)
    assert watch.poll() == []
    verl(folder, 1, size=5)
    assert watch.poll() == []

    assert len(watch.poll()) == 5


def test_half_a_file_is_read_when_it_is_whole(folder):
    watch = Watch(folder)
    verl(folder, 1, size=4)
    whole = (folder / "1.jsonl").read_bytes()
    (folder / "1.jsonl").write_bytes(whole[:-10])
    assert watch.settled() == []
    assert watch.unreadable == 1

    (folder / "1.jsonl").write_bytes(whole)
    assert len(watch.settled()) == 4


def test_half_a_table_is_read_when_it_is_whole(folder):
    watch = Watch(folder)
    path = trl(folder, 1, prompt=["q"], completion=["a"])
    whole = path.read_bytes()
    path.write_bytes(whole[: len(whole) // 2])
    assert watch.settled() == []
    assert watch.unreadable == 1

    path.write_bytes(whole)
    assert len(watch.settled()) == 1


def test_what_is_there_before_the_run_is_another_runs(folder):
    verl(folder, 1)
    watch = Watch(folder)
    verl(folder, 2)

    assert {record.step for record in watch.settled()} == {2}


def test_an_agent_that_takes_over_reads_only_what_the_first_did_not(folder):
    first = Watch(folder)
    verl(folder, 1)
    first.settled()
    verl(folder, 2)
    second = Watch(folder, known=first.files.pop_fingerprints())

    assert {record.step for record in second.settled()} == {2}


def test_marks_are_handed_out_once(folder):
    watch = Watch(folder)
    verl(folder, 1)
    watch.settled()

    assert [os.path.basename(path) for path in watch.files.pop_fingerprints()] == ["1.jsonl"]  # noqa: PTH119
    assert watch.files.pop_fingerprints() == {}


def test_files_are_told_in_the_order_of_their_steps_and_with_the_attempt(folder):
    watch = Watch(folder)
    for step in (10, 9, 100):
        verl(folder, step, size=1)
    watch.poll(attempt=3)

    assert [(r.step, r.attempt) for r in watch.poll(attempt=3)] == [(9, 3), (10, 3), (100, 3)]


def test_other_files_are_not_touched(folder):
    watch = Watch(folder)
    for name in ("train.jsonl", "1.txt", "1.jsonl.tmp", "completions_a.parquet", "-1.jsonl"):
        (folder / name).write_text('{"output": "x"}\n')
    (folder / "2.jsonl").mkdir()
    (folder / "3.jsonl").touch()

    assert watch.settled() == []
    assert watch.unreadable == 0


def test_a_folder_that_does_not_exist_yet_is_waited_for(tmp_path):
    watch = Watch(tmp_path / "later")
    assert watch.settled() == []
    (tmp_path / "later").mkdir()
    verl(tmp_path / "later", 1)

    assert len(watch.settled()) == 2


def test_a_file_that_goes_away_is_no_trouble(folder):
    watch = Watch(folder)
    verl(folder, 1)
    watch.poll()
    watch.files._last_scan_at = watch.now = watch.now + SCAN_INTERVAL_SECONDS
    watch.files._scan()
    (folder / "1.jsonl").unlink()

    assert watch.files.poll(0) == []
    assert watch.unreadable == 1


def test_of_very_many_files_those_of_the_highest_steps_are_looked_at(folder, monkeypatch):
    """A long run's newest files must not be missed for its oldest ones."""
    monkeypatch.setattr(sample_source, "MAX_FILES", 2)
    watch = Watch(folder)
    for step in (4, 1, 10, 2, 3):
        verl(folder, step, size=1)

    assert [record.step for record in watch.settled()] == [4, 10]


def test_a_disk_that_goes_away_while_it_is_listed_is_no_trouble(folder, monkeypatch):
    watch, listed = Watch(folder), os.scandir
    verl(folder, 1)

    class Stale:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def __iter__(self):
            raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "scandir", lambda path: Stale())
    assert watch.settled() == []
    monkeypatch.setattr(os, "scandir", listed)
    assert len(watch.settled()) == 2
