"""Sample files are read once they are complete, and by one agent only."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest
from support.sample_files import FolderReader, trl, verl

from sentinel.readers import sample_files as sample_source
from sentinel.readers.sample_files import SCAN_INTERVAL_SECONDS


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "out").mkdir()
    return tmp_path / "out"


def test_a_file_is_read_again_only_if_it_is_rewritten(folder):
    folder_reader = FolderReader(folder)
    verl(folder, 1)
    assert len(folder_reader.settled()) == 2
    assert folder_reader.settled() == []

    verl(folder, 1, size=3)
    assert len(folder_reader.settled()) == 3


def test_a_growing_file_is_not_read(folder):
    folder_reader = FolderReader(folder)
    verl(folder, 1)
    assert folder_reader.poll() == []
    verl(folder, 1, size=5)
    assert folder_reader.poll() == []

    assert len(folder_reader.poll()) == 5


def test_an_incomplete_file_is_read_when_it_is_complete(folder):
    folder_reader = FolderReader(folder)
    verl(folder, 1, size=4)
    content = (folder / "1.jsonl").read_bytes()
    (folder / "1.jsonl").write_bytes(content[:-10])
    assert folder_reader.settled() == []
    assert folder_reader.unreadable == 1

    (folder / "1.jsonl").write_bytes(content)
    assert len(folder_reader.settled()) == 4


def test_an_incomplete_table_is_read_when_it_is_complete(folder):
    folder_reader = FolderReader(folder)
    path = trl(folder, 1, prompt=["q"], completion=["a"])
    content = path.read_bytes()
    path.write_bytes(content[: len(content) // 2])
    assert folder_reader.settled() == []
    assert folder_reader.unreadable == 1

    path.write_bytes(content)
    assert len(folder_reader.settled()) == 1


def test_files_from_before_the_run_are_skipped(folder):
    verl(folder, 1)
    folder_reader = FolderReader(folder)
    verl(folder, 2)

    assert {record.step for record in folder_reader.settled()} == {2}


def test_a_second_agent_reads_only_new_files(folder):
    first = FolderReader(folder)
    verl(folder, 1)
    first.settled()
    verl(folder, 2)
    second = FolderReader(folder, fingerprints=first.files.pop_fingerprints())

    assert {record.step for record in second.settled()} == {2}


def test_fingerprints_are_returned_once(folder):
    folder_reader = FolderReader(folder)
    verl(folder, 1)
    folder_reader.settled()

    fingerprints = folder_reader.files.pop_fingerprints()
    assert [Path(path).name for path in fingerprints] == ["1.jsonl"]
    assert folder_reader.files.pop_fingerprints() == {}


def test_files_are_read_in_step_order_with_the_attempt(folder):
    folder_reader = FolderReader(folder)
    for step in (10, 9, 100):
        verl(folder, step, size=1)
    folder_reader.poll(attempt=3)

    assert [(r.step, r.attempt) for r in folder_reader.poll(attempt=3)] == [
        (9, 3),
        (10, 3),
        (100, 3),
    ]


def test_files_with_other_names_are_ignored(folder):
    folder_reader = FolderReader(folder)
    for name in ("train.jsonl", "1.txt", "1.jsonl.tmp", "completions_a.parquet", "-1.jsonl"):
        (folder / name).write_text('{"output": "x"}\n')
    (folder / "2.jsonl").mkdir()
    (folder / "3.jsonl").touch()

    assert folder_reader.settled() == []
    assert folder_reader.unreadable == 0


def test_a_directory_may_be_created_later(tmp_path):
    folder_reader = FolderReader(tmp_path / "later")
    assert folder_reader.settled() == []
    (tmp_path / "later").mkdir()
    verl(tmp_path / "later", 1)

    assert len(folder_reader.settled()) == 2


def test_a_file_that_disappears_is_ignored(folder):
    folder_reader = FolderReader(folder)
    verl(folder, 1)
    folder_reader.poll()
    folder_reader.files._last_scan_at = folder_reader.now = (
        folder_reader.now + SCAN_INTERVAL_SECONDS
    )
    folder_reader.files._scan()
    (folder / "1.jsonl").unlink()

    assert folder_reader.files.poll(0) == []
    assert folder_reader.unreadable == 1


def test_of_many_files_those_of_the_highest_steps_are_read(folder, monkeypatch):
    """The newest files of a long run must not be dropped in favour of the oldest."""
    monkeypatch.setattr(sample_source, "MAX_FILES", 2)
    folder_reader = FolderReader(folder)
    for step in (4, 1, 10, 2, 3):
        verl(folder, step, size=1)

    assert [record.step for record in folder_reader.settled()] == [4, 10]


def test_a_disk_that_fails_while_it_is_listed_is_ignored(folder, monkeypatch):
    folder_reader, listed = FolderReader(folder), os.scandir
    verl(folder, 1)

    class Stale:
        def __enter__(self):
            return self

        def __exit__(self, *_):
            return None

        def __iter__(self):
            raise OSError(errno.ESTALE, "Stale file handle")

    monkeypatch.setattr(os, "scandir", lambda path: Stale())
    assert folder_reader.settled() == []
    monkeypatch.setattr(os, "scandir", listed)
    assert len(folder_reader.settled()) == 2
