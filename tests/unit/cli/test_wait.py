"""`sentinel wait` for runs without an agent: it answers at once, with the verdict."""

from __future__ import annotations

import json
import os
import time

import pytest
from support.stored_homes import write_run
from typer.testing import CliRunner

from sentinel.agent import run_waiting
from sentinel.cli.main import app
from sentinel.transport.paths import DATABASE_NAME


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    """A home with a healthy run, one with a fault, and one that did not end."""
    home = tmp_path_factory.mktemp("home")
    write_run(home, run="healthy-1", steps=30)
    write_run(home, run="collapse-2", steps=110, fault_at=60, begin=1_760_001_000.0)
    write_run(home, run="cut-off-3", steps=20, outcome="", begin=1_760_002_000.0)
    return home


@pytest.fixture(autouse=True)
def home(stored, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(stored))
    for path in stored.glob(f"runs/*/{DATABASE_NAME}"):
        os.utime(path, (time.time() - 3600.0,) * 2)
    return stored


def wait(*arguments):
    return CliRunner().invoke(app, ["wait", *arguments])


@pytest.mark.parametrize(
    ("run", "condition", "exit_code", "outcome", "status"),
    [
        ("healthy-1", "finished", 0, "reached", "ended_well"),
        ("healthy-1", "step=30", 0, "reached", "ended_well"),
        ("healthy-1", "case-resolved", 0, "reached", "ended_well"),
        ("healthy-1", "unhealthy", 4, "ended", "ended_well"),
        ("healthy-1", "step=31", 4, "ended", "ended_well"),
        ("collapse-2", "unhealthy", 0, "reached", "ended_badly"),
        ("collapse-2", "finished", 3, "unhealthy", "ended_badly"),
        ("collapse-2", "case-resolved", 4, "ended", "ended_badly"),
        ("cut-off-3", "finished", 4, "ended", "unknown"),
    ],
)
def test_an_ended_run_is_answered_at_once(run, condition, exit_code, outcome, status):
    result = wait(run, "--until", condition, "--json")
    answer = json.loads(result.stdout)

    assert result.exit_code == exit_code
    assert (answer["outcome"], answer["verdict"]["status"]) == (outcome, status)
    assert answer["condition"] == (condition if outcome != "ended" else "")
    shown = json.loads(CliRunner().invoke(app, ["status", run, "--json"]).stdout)["verdict"]
    assert shown | {"age_seconds": 0} == answer["verdict"] | {"age_seconds": 0}


def test_a_run_that_may_go_on_is_waited_for_until_the_timeout(home):
    os.utime(home / "runs" / "cut-off-3" / DATABASE_NAME)
    began = time.monotonic()
    result = wait("cut-off-3", "--until", "finished", "--timeout", "0.2")

    assert result.exit_code == 5
    assert "the time is over" in result.stdout
    assert 0.2 <= time.monotonic() - began < 20.0


def test_the_text_has_the_sentence_the_cause_and_what_to_do():
    result = wait("collapse-2", "--until", "unhealthy")
    first, second, *others = result.stdout.splitlines()

    assert first.startswith("collapse-2: unhealthy (")
    assert second.startswith("  Ended badly: Policy collapse")
    assert [line.split(":")[0].strip() for line in others][:3] == [
        "Cause",
        "Evidence",
        "What to do",
    ]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["healthy-2", "--until", "finished"], "Did you mean 'healthy-1'?"),
        (["healthy-1", "--until", "finshed"], "Did you mean 'finished'?"),
        (["../x", "--until", "finished"], "is not valid"),
    ],
)
def test_an_unknown_run_or_condition_is_an_error(arguments, message):
    result = wait(*arguments)

    assert result.exit_code == 2
    assert message in result.stderr


def test_a_run_that_is_started_again_meanwhile_is_waited_for(home, monkeypatch):
    """Its verdict is read again only after a change of the database."""
    reads = []
    read = run_waiting.stored_run
    monkeypatch.setattr(
        run_waiting, "stored_run", lambda *arguments: reads.append(1) or read(*arguments)
    )
    path = home / "runs" / "cut-off-3" / DATABASE_NAME
    looks = []

    def sleep(_):
        looks.append(1)
        if len(looks) == 3:
            # Long ago now: nothing of the run is left.
            os.utime(path, (1.0, 1.0))

    os.utime(path)
    waited = run_waiting.wait_for_run("cut-off-3", ["finished"], sleep=sleep)

    assert waited.end.outcome.value == "ended"
    assert (len(looks), len(reads)) == (3, 2)
