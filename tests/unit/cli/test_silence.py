"""`sentinel silence` and `sentinel ack`: what people enter reaches the run's database."""

from __future__ import annotations

import json
import time
from contextlib import closing

import pytest
from support.results import RUN, make_incident, incident_result
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.store import silences
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.transport.paths import run_dir


@pytest.fixture(autouse=True)
def connection(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path))
    with closing(connect(run_dir(RUN) / "sentinel.db")) as connection:
        yield connection


def said(*words):
    return CliRunner().invoke(app, [*words])


@pytest.mark.parametrize(
    ("words", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5d", 129600)]
)
def test_a_silence_lasts_as_long_as_was_said(connection, words, seconds):
    before = time.time()
    told = said("silence", RUN, "kl_blowup", "--for", words, "--why", "known")
    (entered,) = silences.active_silences(connection, before)

    assert told.exit_code == 0
    assert told.stdout.startswith("kl_blowup silenced until ")
    assert told.stdout.endswith(": known\n")
    assert (entered.detector, entered.comment) == ("kl_blowup", "known")
    assert entered.ends_at - entered.starts_at == pytest.approx(seconds)


def test_silences_are_shown_and_ended():
    said("silence", RUN, "--for", "2h")
    listed = said("silence", RUN, "--list", "--json")

    assert json.loads(listed.stdout)["detector"] == ""
    assert said("silence", RUN, "--end").stdout == "1 ended.\n"
    assert said("silence", RUN, "--list").stdout == f"Nothing is silenced on run {RUN}.\n"


@pytest.mark.parametrize(
    ("words", "trouble"),
    [
        (["silence", RUN], "say one of --for 2h, --list and --end."),
        (["silence", RUN, "--for", "2h", "--end"], "say one of"),
        (["silence", RUN, "--for", "soon"], "--for 'soon' is no time"),
        (["silence", RUN, "--for", "0s"], "is no time"),
        (["silence", RUN, "--for", "31d"], "up to 30d"),
        (["silence", RUN, "kl_blow", "--for", "2h"], "did you mean 'kl_blowup'?"),
        (["silence", "other", "--list"], "there is no run 'other'"),
        (["silence", "../x", "--list"], "is not usable"),
        (["ack", RUN], "nothing fires on run"),
        (["ack", RUN, "kl_blowup"], "nothing of kl_blowup fires"),
        (["ack", RUN, "--list", "--end"], "say one of"),
    ],
)
def test_what_cannot_be_is_refused_with_what_can(words, trouble):
    told = said(*words)

    assert told.exit_code == 2
    assert trouble in told.stderr


def test_what_fires_is_taken_in_hand_and_given_back(connection):
    History(connection).update(incident_result(of=make_incident("kl_blowup")))
    taken = said("ack", RUN, "--why", "looking")
    listed = said("ack", RUN, "--list", "--json")

    assert taken.stdout.startswith(f"{RUN}/kl_blowup#1 acknowledged")
    assert taken.stdout.endswith(": looking\n")
    assert json.loads(listed.stdout)["severity"] == "critical"
    assert said("ack", RUN, "kl_blowup", "--end").stdout == "1 given back.\n"
    assert said("ack", RUN, "--list").stdout == ""


def test_a_database_that_is_none_is_told_of():
    (run_dir("broken") / "sentinel.db").write_bytes(b"no database at all" * 100)

    assert "cannot be used" in said("silence", "broken", "--list").stderr
