"""Requests that acknowledge and silence: their validation, effects and lines in the log."""

from __future__ import annotations

import json
import logging
import sqlite3
from contextlib import closing

import pytest
from support.results import RUN, incident_result, make_incident

from sentinel.store import silences
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.web.responses import RequestError
from sentinel.web.suppression_api import SuppressionApi

NOW = 1_700_000_000.0


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sentinel.db"


@pytest.fixture
def connection(path):
    with closing(connect(path)) as connection:
        History(connection).update(incident_result(of=make_incident("kl_blowup")))
        yield connection


@pytest.fixture
def api(path, connection):
    return SuppressionApi(RUN, path, clock=lambda: NOW)


def send(method, request, user=""):
    return method(json.dumps(request).encode(), user, "127.0.0.1")


def test_firing_incidents_are_acknowledged_and_revoked(api, connection):
    (ack,) = send(api.acknowledge, {"reason": "looking", "author": "ana"})["acknowledged"]
    stored = silences.load_acks(connection)

    assert ack == silences.ack_to_dict(stored[ack["incident"]])
    assert (ack["author"], ack["comment"], ack["time"]) == ("ana", "looking", NOW)
    assert send(api.acknowledge, {"revoke": True, "detector": "kl_blowup"}) == {"revoked": 1}
    assert silences.load_acks(connection) == {}


def test_one_incident_is_acknowledged_by_its_name(api):
    name = make_incident("kl_blowup").name

    assert send(api.acknowledge, {"incident": name})["acknowledged"][0]["incident"] == name
    with pytest.raises(RequestError, match="has no firing incident other"):
        send(api.acknowledge, {"incident": "other"})


def test_a_silence_is_stored_and_ended(api, connection):
    added = send(api.silence, {"for": "1h30m", "detector": "kl_blowup"})["silence"]
    (stored,) = silences.active_silences(connection, NOW)

    assert added == silences.silence_to_dict(stored)
    assert (stored.ends_at, stored.author) == (NOW + 5400, "web page")
    assert send(api.silence, {"end": True}) == {"ended": 1}


def test_the_author_is_the_user_that_logged_in(api):
    added = send(api.silence, {"for": "2h", "author": "somebody else"}, user="ana")["silence"]

    assert added["author"] == "ana"


def test_every_change_is_one_line_in_the_log(api, caplog):
    caplog.set_level(logging.INFO)
    send(api.silence, {"for": "2h", "author": "a\nERROR forged", "reason": "b\x1b[2J\r\nforged"})
    send(api.acknowledge, {"detector": "kl_blowup", "author": "x" * 999})
    lines = [record.message for record in caplog.records]

    assert lines[0] == (
        f"Run {RUN}: silenced all detectors until 2023-11-15 00:13 UTC by a ERROR forged "
        "from 127.0.0.1: b[2J  forged"
    )
    assert "acknowledged" in lines[1]
    assert len(lines[1]) < 300
    assert all(line.isprintable() for line in lines)


@pytest.mark.fault("X5")
@pytest.mark.parametrize(
    ("method", "content", "status", "message"),
    [
        ("acknowledge", [], 400, "must be a JSON object"),
        ("acknowledge", {"incident": "\ud800"}, 400, "not valid JSON"),
        ("acknowledge", {"detector": "kl_blow"}, 400, 'Did you mean "kl_blowup"?'),
        ("acknowledge", {"detectr": "x"}, 400, 'Did you mean "detector"?'),
        ("acknowledge", {"detector": 3}, 400, '"detector" must be a string'),
        ("acknowledge", {"revoke": 1}, 400, '"revoke" must be true or false'),
        ("acknowledge", {"revoke": True, "incident": "x"}, 400, "revoke takes a detector"),
        ("acknowledge", {"detector": "loss_spike"}, 409, "has no firing incident of loss_spike."),
        ("silence", {}, 400, 'Give either "for"'),
        ("silence", {"for": "2h", "end": True}, 400, 'Give either "for"'),
        ("silence", {"for": "31d"}, 400, "is not a duration up to 30d"),
        ("silence", {"for": "soon"}, 400, "for: 'soon' is not a duration"),
        ("silence", {"for": "0s"}, 400, "is not a duration"),
        ("silence", {"for": "1h", "run": "../x"}, 400, "'run' is not known"),
    ],
)
def test_wrong_requests_are_refused_as_the_commands_do(api, method, content, status, message):
    with pytest.raises(RequestError) as error:
        send(getattr(api, method), content)

    assert (error.value.status, message in str(error.value)) == (status, True)
    assert send(api.silence, {"end": True}) == {"ended": 0}
    assert send(api.acknowledge, {"revoke": True}) == {"revoked": 0}


@pytest.mark.parametrize("body", [b"", b"{", b"\xff", b"[" * 2000])
def test_a_body_that_is_not_json_is_refused(api, body):
    with pytest.raises(RequestError) as error:
        api.silence(body, "", "127.0.0.1")

    assert error.value.status == 400


def test_where_another_agent_sends_notifications_nothing_is_stored(path, connection):
    api = SuppressionApi(RUN, path, lambda: "The head sends the notifications.")
    with pytest.raises(RequestError, match="The head sends") as error:
        send(api.silence, {"for": "2h"})

    assert error.value.status == 409
    assert silences.active_silences(connection, NOW) == ()


def test_a_database_that_cannot_be_used_is_an_answer(tmp_path):
    (tmp_path / "sentinel.db").write_bytes(b"not a database at all" * 500)
    errors = []
    api = SuppressionApi(RUN, tmp_path / "sentinel.db", report=errors.append)
    with pytest.raises(RequestError, match="cannot be written") as error:
        send(api.silence, {"for": "2h"})

    assert error.value.status == 503
    assert isinstance(errors[0], sqlite3.DatabaseError)
