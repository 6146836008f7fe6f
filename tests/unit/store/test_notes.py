"""The note about a run, in its file and in the summary that lists show."""

from __future__ import annotations

import json
import os

import pytest

from sentinel.store.notes import MAX_NOTE_CHARS, NOTE_NAME, log_note_path, read_note, write_note
from sentinel.store.run_summary import (
    SUMMARY_NAME,
    make_summary,
    note_in_summary,
    run_entry,
    write_summary,
)

STATE = {"run": "grpo-7b", "state": "finished"}
NOW = 1_700_000_000.0


def test_a_note_is_replaced_and_deleted(tmp_path):
    path = tmp_path / "new" / NOTE_NAME
    written = write_note(path, "good seed\nrerun", "ana", NOW)

    assert read_note(path) == written
    assert written.to_dict() == {"text": "good seed\nrerun", "author": "ana", "time": NOW}
    write_note(path, "never mind", "ben", NOW + 1)
    assert read_note(path).author == "ben"
    assert [each.name for each in path.parent.iterdir()] == [NOTE_NAME]
    assert write_note(path, " \n", "ben", NOW) is None
    assert read_note(path) is None


def test_a_note_has_no_characters_that_change_a_terminal_and_a_limited_length(tmp_path):
    hostile = "a\x1b[2J\u202eb\0" + "x" * 5000
    note = write_note(tmp_path / NOTE_NAME, hostile, "\x1b]0;" + "y" * 500, NOW)

    assert note.text.startswith("a[2Jbxxx")
    assert (len(note.text), len(note.author)) == (MAX_NOTE_CHARS, 80)
    assert (note.text + note.author).isprintable()


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"text": 3}', b"\xff", b"[" * 9000])
def test_a_damaged_note_is_none(tmp_path, body):
    (tmp_path / NOTE_NAME).write_bytes(body)

    assert read_note(tmp_path / NOTE_NAME) is None


def test_a_list_shows_the_start_of_a_note_and_finds_it_by_its_words(tmp_path):
    write_summary(tmp_path, make_summary(STATE, ("loss", [1.0], 1.0)))
    path = tmp_path / SUMMARY_NAME
    os.utime(path, ns=(10**18, 10**18))
    note_in_summary(tmp_path, write_note(tmp_path / NOTE_NAME, "Good\nseed " + "x" * 500, "", NOW))
    status = path.stat()

    entry = run_entry("grpo-7b", tmp_path, (status.st_mtime_ns, 0), path.read_bytes())
    assert json.loads(entry.body)["note"].startswith("Good seed xxx")
    assert "good seed" in entry.search
    # It is as old as it was, and yet another file for the list.
    assert status.st_mtime_ns == 10**18 + 1000
    note_in_summary(tmp_path, None)
    assert json.loads(path.read_bytes())["note"] == ""
    # A run without a summary gets it with its first one.
    note_in_summary(tmp_path / "other", None)


def test_the_note_about_a_log_is_in_the_home_directory(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path))
    paths = {log_note_path(tmp_path / name) for name in ("a.jsonl", "b.jsonl")}

    assert len(paths) == 2
    assert {path.parent for path in paths} == {tmp_path / "log-notes"}
