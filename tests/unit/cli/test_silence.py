"""`sentinel silence` and `sentinel ack`: entries in the run's database."""

from __future__ import annotations

import json
import time
from contextlib import closing

import pytest
from support.results import RUN, incident_result, make_incident
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


def run_command(*arguments):
    return CliRunner().invoke(app, [*arguments])


@pytest.mark.parametrize(
    ("duration", "seconds"), [("90s", 90), ("30m", 1800), ("1h30m", 5400), ("1.5d", 129600)]
)
def test_a_silence_has_the_given_duration(connection, duration, seconds):
    before = time.time()
    result = run_command("silence", RUN, "kl_blowup", "--for", duration, "--reason", "known")
    (stored,) = silences.active_silences(connection, before)

    assert result.exit_code == 0
    assert result.stdout.startswith("kl_blowup silenced until ")
    assert result.stdout.endswith(": known\n")
    assert (stored.detector, stored.comment) == ("kl_blowup", "known")
    assert stored.ends_at - stored.starts_at == pytest.approx(seconds)


def test_silences_are_listed_and_ended():
    run_command("silence", RUN, "--for", "2h")
    listed = run_command("silence", RUN, "--list", "--json")

    assert json.loads(listed.stdout)["detector"] == ""
    assert run_command("silence", RUN, "--end").stdout == "1 silence ended.\n"
    assert run_command("silence", RUN, "--list").stdout == f"Run {RUN} has no active silences.\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["silence", RUN], "give exactly one of --for, --list and --end."),
        (["silence", RUN, "--for", "2h", "--end"], "give exactly one of"),
        (["silence", RUN, "--for", "soon"], "--for 'soon' is not a duration"),
        (["silence", RUN, "--for", "0s"], "is not a duration"),
        (["silence", RUN, "--for", "31d"], "up to 30d"),
        (["silence", RUN, "kl_blow", "--for", "2h"], 'Did you mean "kl_blowup"?'),
        (["silence", "other", "--list"], "no run 'other'"),
        (["silence", "../x", "--list"], "is not valid"),
        (["ack", RUN], f"run {RUN} has no firing incident."),
        (["ack", RUN, "kl_blowup"], "has no firing incident of kl_blowup."),
        (["ack", RUN, "--list", "--revoke"], "give only one of"),
    ],
)
def test_wrong_arguments_are_rejected_with_a_message(arguments, message):
    result = run_command(*arguments)

    assert result.exit_code == 2
    assert message in result.stderr


def test_firing_incidents_are_acknowledged_and_revoked(connection):
    History(connection).update(incident_result(of=make_incident("kl_blowup")))
    acknowledged = run_command("ack", RUN, "--reason", "looking")
    listed = run_command("ack", RUN, "--list", "--json")

    assert acknowledged.stdout.startswith(f"{RUN}/kl_blowup#1 acknowledged")
    assert acknowledged.stdout.endswith(": looking\n")
    assert json.loads(listed.stdout)["severity"] == "critical"
    assert run_command("ack", RUN, "kl_blowup", "--revoke").stdout == "1 acknowledgement revoked.\n"
    assert run_command("ack", RUN, "--list").stdout == f"Run {RUN} has no acknowledged incidents.\n"


def test_an_unreadable_database_is_an_error():
    (run_dir("broken") / "sentinel.db").write_bytes(b"no database at all" * 100)

    assert "cannot use" in run_command("silence", "broken", "--list").stderr
