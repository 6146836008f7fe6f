"""`sentinel note`, and the commands that show the note."""

from __future__ import annotations

import fcntl
import json

import pytest
from support.stored_homes import write_run
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.transport.paths import AGENT_LOCK


@pytest.fixture
def home(tmp_path, monkeypatch):
    home = tmp_path / "home"
    monkeypatch.setenv("SENTINEL_HOME", str(home))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))
    for run in ("well-1", "well-2"):
        write_run(home, run=run, steps=5, ranks=1)
    return home


def sentinel(*arguments):
    return CliRunner().invoke(app, [*arguments])


def test_a_note_is_written_and_shown_by_other_commands(home):
    written = sentinel("note", "well-1", "good seed\nrerun")
    assert written.exit_code == 0, written.output
    assert "good seed rerun" in written.stdout
    assert "good seed" in sentinel("note", "well-1").stdout
    assert sentinel("note", "well-2").stdout == "Run well-2 has no note.\n"
    assert json.loads(sentinel("status", "well-1", "--json").stdout)["note"]["text"].startswith(
        "good"
    )
    assert "  note by " in sentinel("status", "well-1").stdout
    rows = [json.loads(line) for line in sentinel("status", "--all", "--json").stdout.splitlines()]
    assert {row["run"]: row["note"] for row in rows} == {"well-1": "good seed rerun", "well-2": ""}
    assert "good seed" in sentinel("compare", "well-1", "well-2").stdout
    report = sentinel("report", "well-1", "--md", "-o", str(home / "report.md"))
    assert report.exit_code == 0, report.output
    assert "good seed" in (home / "report.md").read_text()
    deleted = sentinel("note", "well-1", "--delete", "--json")
    assert json.loads(deleted.stdout) == {"run": "well-1", "note": None}


def test_a_log_has_a_note_too(home, tmp_path):
    log = tmp_path / "log.jsonl"
    log.write_text("".join(f'{{"step": {n}, "loss": 1.0}}\n' for n in range(30)))

    assert sentinel("note", str(log), "from the old cluster").exit_code == 0
    assert "old cluster" in sentinel("note", str(log)).stdout
    assert "old cluster" in sentinel("compare", str(log), "well-1").stdout


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["nothing"], "no run 'nothing'"),
        (["well-1", "x", "--delete"], "give a text, or --delete"),
        (["well-1", "x" * 1001], "at most 1000 characters"),
    ],
)
def test_a_wrong_call_is_refused(home, arguments, message):
    result = sentinel("note", *arguments)

    assert (result.exit_code, message in result.stderr) == (2, True)


@pytest.mark.parametrize(
    "command",
    [
        ["note", "well-1", "good"],
        ["ack", "well-1"],
        ["silence", "well-1", "loss_spike", "--for", "1h"],
    ],
)
def test_nothing_is_stored_where_the_agent_would_overwrite_it(home, command):
    """The agent works in a shared memory that this process lacks, as in another container."""
    with (home / "runs" / "well-1" / AGENT_LOCK).open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        refused = sentinel(*command)

    assert refused.exit_code == 2
    assert "shared memory that this process does not have" in refused.output
