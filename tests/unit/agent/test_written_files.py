"""Files that a command creates or changes in a directory."""

from __future__ import annotations

import os

import pytest

from sentinel.agent import written_files as module
from sentinel.agent.written_files import scan_files, written_files


@pytest.fixture
def folder(tmp_path):
    (tmp_path / "kept").write_text("a")
    (tmp_path / "changed").write_text("a")
    (tmp_path / "runs").mkdir()
    return tmp_path


def test_new_and_changed_files_are_listed(folder):
    before = scan_files(folder)
    # A copy keeps the time of its original.
    (folder / "changed").write_text("b")
    os.utime(folder / "changed", (1.0, 1.0))
    (folder / "runs" / "new").write_text("abc")
    (folder / "__pycache__").mkdir()
    (folder / "__pycache__" / "module.pyc").write_text("")
    (folder / "link").symlink_to(folder / "kept")

    assert written_files(before, scan_files(folder)) == {"changed": 1, "runs/new": 3}


def test_files_to_which_our_own_output_goes_are_no_files_of_the_command(folder):
    with (folder / "log").open("w") as log:
        before = scan_files(folder, [log.fileno()])
        log.write("table")
        log.flush()
        (folder / "other").write_text("")

        assert written_files(before, scan_files(folder, [log.fileno()])) == {"other": 0}


def test_above_the_bound_only_files_that_were_compared_are_listed(folder, monkeypatch):
    monkeypatch.setattr(module, "MAX_ENTRIES", 2)
    before = scan_files(folder)
    (folder / "a new one").write_text("")
    (folder / "changed").write_text("bb")
    after = scan_files(folder)

    assert not before.complete
    assert written_files(before, after) == {"changed": 2}


def test_a_folder_that_cannot_be_read_is_left_out(tmp_path):
    assert scan_files(tmp_path / "missing").files == {}
