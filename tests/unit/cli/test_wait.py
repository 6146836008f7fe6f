"""`sentinel wait` for runs without an agent: it answers at once, with the verdict."""

from __future__ import annotations

import json
import os
import sqlite3
import time
from contextlib import nullcontext

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
    future = time.time() + 3600.0
    os.utime(home / "runs" / "cut-off-3" / DATABASE_NAME, (future, future))
    result = wait("cut-off-3", "--until", "finished", "--timeout", "0.2")

    assert result.exit_code == 5
    assert "the time is over" in result.stdout


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

    monkeypatch.setattr(run_waiting, "RESTART_SECONDS", 3600.0)
    os.utime(path)
    waited = run_waiting.wait_for_run("cut-off-3", ["finished"], sleep=sleep)

    assert waited.end.outcome.value == "ended"
    assert (len(looks), len(reads)) == (3, 2)


def test_a_file_of_a_clock_that_is_ahead_does_not_keep_a_wait_for_ever(home):
    future = time.time() + 1e6
    os.utime(home / "runs" / "cut-off-3" / DATABASE_NAME, (future, future))
    now = [0.0]
    waited = run_waiting.wait_for_run(
        "cut-off-3",
        ["finished"],
        clock=lambda: now[0],
        sleep=lambda seconds: now.__setitem__(0, now[0] + seconds),
    )

    assert waited.end.outcome.value == "ended"
    assert waited.seconds == run_waiting.RESTART_SECONDS


@pytest.mark.parametrize("is_repaired", [True, False])
def test_a_database_that_is_damaged_meanwhile_may_be_replaced(home, is_repaired):
    path = home / "runs" / "cut-off-3" / DATABASE_NAME
    content, now = path.read_bytes(), [0.0]
    future = time.time() + 1e6
    os.utime(path, (future, future))

    def sleep(seconds):
        now[0] += seconds
        if now[0] in {3.0, 9.0}:
            path.write_bytes(b"damaged" if now[0] < 9.0 or not is_repaired else content)
            os.utime(path, (future, future + now[0]))

    try:
        with nullcontext() if is_repaired else pytest.raises(sqlite3.DatabaseError):
            waited = run_waiting.wait_for_run(
                "cut-off-3", ["finished"], clock=lambda: now[0], sleep=sleep
            )
            assert waited.verdict["step"] == 20
            assert waited.seconds == 9.0 + run_waiting.RESTART_SECONDS
    finally:
        path.write_bytes(content)


def test_an_agent_that_answers_too_early_is_not_asked_all_the_time(home, monkeypatch):
    verdict = run_waiting.stored_run("cut-off-3", home / "runs" / "cut-off-3" / DATABASE_NAME)
    answers = iter([verdict["verdict"]] * 3 + [verdict["verdict"] | {"status": "ended_well"}])
    monkeypatch.setattr(run_waiting, "_ask_agent", lambda *_: next(answers))
    pauses = []
    run_waiting.wait_for_run("cut-off-3", ["finished"], clock=lambda: 0.0, sleep=pauses.append)

    assert pauses == [run_waiting.LOOK_SECONDS] * 3
