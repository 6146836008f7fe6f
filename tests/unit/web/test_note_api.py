"""Requests that read and write the note about a run."""

from __future__ import annotations

import fcntl
import json
import logging

import pytest

from sentinel.store.notes import MAX_NOTE_CHARS, NOTE_NAME, read_note
from sentinel.store.run_summary import SUMMARY_NAME, make_summary, write_summary
from sentinel.transport.paths import AGENT_LOCK
from sentinel.web.auth import MAX_BODY_BYTES
from sentinel.web.note_api import NoteApi
from sentinel.web.suppression_api import RequestError

NOW = 1_700_000_000.0


@pytest.fixture
def api(tmp_path):
    return NoteApi("grpo-7b", tmp_path / NOTE_NAME, clock=lambda: NOW)


def send(api, request, user=""):
    return api.write(json.dumps(request).encode(), user, "127.0.0.1")


def test_a_note_is_written_read_and_deleted(api, tmp_path, caplog):
    caplog.set_level(logging.INFO)
    write_summary(tmp_path, make_summary({"run": "a", "state": "finished"}, ("", [], None)))
    note = send(api, {"text": "<b>good</b>\nseed", "author": "ana"})["note"]

    assert note == {"text": "<b>good</b>\nseed", "author": "ana", "time": NOW}
    assert api.read() == note
    assert json.loads((tmp_path / SUMMARY_NAME).read_text())["note"] == "<b>good</b> seed"
    assert caplog.messages == ["Run grpo-7b: note by ana from 127.0.0.1: <b>good</b> seed"]
    assert send(api, {"text": ""}) == {"note": None}
    assert api.read() is None


def test_the_longest_note_of_any_characters_fits_in_a_request():
    longest = json.dumps({"text": "\U0001f600" * MAX_NOTE_CHARS, "author": "x" * 200})
    assert len(longest) <= MAX_BODY_BYTES


def test_the_author_is_the_user_that_logged_in(api):
    assert send(api, {"text": "x", "author": "other"}, user="ana")["note"]["author"] == "ana"
    assert send(api, {"text": "x"})["note"]["author"] == "web page"


@pytest.mark.fault("X5")
@pytest.mark.parametrize(
    ("request_body", "message"),
    [
        ([], "must be a JSON object"),
        ({}, 'Give "text"'),
        ({"text": 3}, '"text" must be a string'),
        ({"text": "x" * 1001}, "at most 1000 characters"),
        ({"text": "x", "txt": "y"}, 'Did you mean "text"?'),
        ({"text": "\ud800"}, "not valid JSON"),
    ],
)
def test_wrong_requests_are_refused(api, request_body, message):
    with pytest.raises(RequestError) as error:
        send(api, request_body)

    assert (error.value.status, message in str(error.value)) == (400, True)
    assert api.read() is None


def test_a_directory_that_cannot_be_written_is_an_answer(tmp_path):
    (tmp_path / "file").write_text("")
    api = NoteApi("grpo-7b", tmp_path / "file" / NOTE_NAME)
    with pytest.raises(RequestError, match="cannot be stored: File exists") as error:
        send(api, {"text": "x"})

    assert error.value.status == 503
    assert read_note(tmp_path / "file" / NOTE_NAME) is None


def test_a_note_is_not_stored_where_the_agent_would_overwrite_it(api, tmp_path):
    """The agent works in a shared memory that this process lacks, as in another container."""
    with (tmp_path / AGENT_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        with pytest.raises(RequestError, match="another shared memory") as error:
            send(api, {"text": "x"})
    assert error.value.status == 409
    assert api.read() is None

    assert send(api, {"text": "x"})["note"]["text"] == "x"
