"""`sentinel replay` and `sentinel watch` with a folder that holds the logs of several runs."""

from __future__ import annotations

import json
import os

import pytest
from support.event_files import event, event_file
from support.replays import collapse_rows, healthy_rows, replay_lines, run_replay
from typer.testing import CliRunner

from sentinel.cli.main import app


@pytest.fixture
def folder(tmp_path):
    """A healthy run, one with an incident, and a pipe."""
    for name, rows in (("good", healthy_rows(50)), ("bad", collapse_rows())):
        path = tmp_path / "logs" / name / "log.jsonl"
        path.parent.mkdir(parents=True)
        path.write_text("".join(json.dumps(row) + "\n" for row in rows))
    return tmp_path / "logs"


def test_each_run_is_replayed_under_its_name(folder):
    lines = replay_lines(folder)
    summaries = [line for line in lines if line["type"] == "summary"]
    assert [line["run"] for line in summaries] == ["bad-log", "good-log"]
    assert {line["run"] for line in lines if line["type"] == "incident"} == {"bad-log"}
    result = run_replay(folder, "--fail-on", "critical")
    assert result.exit_code == 3
    assert result.stdout.index("bad-log") < result.stdout.index("good-log")


def test_a_folder_with_one_log_is_that_run(folder):
    *_, summary = replay_lines(folder / "good")
    assert summary["steps"] == 50
    assert "run" not in summary


def test_tensorboard_folder_of_several_runs(tmp_path):
    for name in ("lr-1", "lr-2"):
        event_file(tmp_path / name, *(event(step, "loss", 1.0) for step in range(5)))
    assert [line["run"] for line in replay_lines(tmp_path)] == ["lr-1", "lr-2"]


def test_what_cannot_be_read_is_named_and_the_rest_is_replayed(folder):
    os.mkfifo(folder / "live.jsonl")
    result = run_replay(folder, "--json")
    assert result.exit_code == 0
    assert "it is a pipe" in result.stderr
    for log in folder.glob("*/log.jsonl"):
        log.write_text("")
    result = run_replay(folder)
    assert result.exit_code == 2


def test_watch_names_the_runs(folder):
    result = CliRunner().invoke(app, ["watch", str(folder)])
    assert result.exit_code == 2
    text = " ".join(result.stderr.split())
    assert "holds the logs of 2 runs: watch one of bad/log.jsonl, good/log.jsonl" in text
    assert "sentinel serve" in text
