"""`sentinel prune`: which runs it deletes, and what it prints."""

from __future__ import annotations

import fcntl
import json
import os
import time

import pytest
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.transport.paths import AGENT_LOCK, run_dir

DAY = 86400.0


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    for day in (1, 10, 40):
        directory = run_dir(f"run-{day}")
        with (directory / "sentinel.db").open("wb") as file:
            file.truncate(4 << 20)
        (directory / "outcome.json").touch()
        (directory / AGENT_LOCK).touch()
        for path in (*directory.iterdir(), directory):
            os.utime(path, (time.time() - day * DAY,) * 2)
    return tmp_path / "home"


@pytest.fixture
def live():
    """The oldest run has an agent."""
    descriptor = os.open(run_dir("run-40") / AGENT_LOCK, os.O_RDWR)
    fcntl.flock(descriptor, fcntl.LOCK_EX)
    yield
    os.close(descriptor)


def run_command(*arguments):
    return CliRunner().invoke(app, ["prune", *arguments])


def names(home):
    return sorted(path.name for path in (home / "runs").iterdir())


def test_runs_older_than_an_age_are_deleted(home):
    result = run_command("--older-than", "30d")

    assert result.exit_code == 0
    assert names(home) == ["run-1", "run-10"]
    first, last = result.stdout.splitlines()
    assert first.startswith("Deleted run-40: 4.0 MiB, last written 20")
    assert last == "Deleted 1 run with 4.0 MiB. Kept 2 runs with 8.0 MiB."


def test_all_but_the_newest_are_deleted(home):
    assert run_command("--keep", "1").exit_code == 0
    assert names(home) == ["run-1"]


def test_with_both_options_both_must_allow_it(home):
    run_command("--keep", "1", "--older-than", "30d")
    assert names(home) == ["run-1", "run-10"]


def test_a_dry_run_deletes_nothing(home):
    result = run_command("--keep", "0", "--dry-run")

    assert len(names(home)) == 3
    assert "Would delete run-10: 4.0 MiB" in result.stdout
    assert result.stdout.endswith(
        "Would delete 3 runs with 12.0 MiB. Would keep 0 runs with 0.0 MiB.\n"
    )


def test_a_live_run_is_never_deleted(home, live):
    result = run_command("--keep", "0")

    assert names(home) == ["run-40"]
    assert "Kept 1 run with 4.0 MiB, 1 of them live or not ended." in result.stdout


def test_without_options_the_cap_of_the_home_directory_applies(home, monkeypatch):
    run_command()
    assert len(names(home)) == 3

    monkeypatch.setenv("SENTINEL_HISTORY__MAX_HOME_MB", "9")
    run_command()
    assert names(home) == ["run-1", "run-10"]


def test_json_has_one_line_per_run(home, live):
    lines = [json.loads(line) for line in run_command("--keep", "1", "--json").stdout.splitlines()]

    assert [(line["run"], line["action"], line["status"]) for line in lines] == [
        ("run-40", "keep", "live"),
        ("run-10", "deleted", "finished"),
        ("run-1", "keep", "finished"),
    ]
    assert lines[0]["bytes"] == 4 << 20


@pytest.mark.parametrize("age", ["soon", "-1d", "0d", ""])
def test_an_age_that_is_none_is_refused(home, age):
    result = run_command("--older-than", age)

    assert result.exit_code == 2
    assert "is not a duration up to 36500d. Examples: 90s, 1h30m." in result.stderr
    assert len(names(home)) == 3
