"""Run ids as arguments: suggestions for mistyped ones, and completion."""

from __future__ import annotations

import os

import pytest
from typer.testing import CliRunner

from sentinel.cli._options import complete_detector, complete_run, resolve_run
from sentinel.cli.main import app
from sentinel.store.run_names import similar_runs


@pytest.fixture(autouse=True)
def home(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "runtime"))
    for age, run in enumerate(("grpo-7b-aa11bb", "h-45abd3", "grpo-7b-cc22dd", "sft")):
        (tmp_path / "runs" / run).mkdir(parents=True)
        os.utime(tmp_path / "runs" / run, (1e9 - age, 1e9 - age))


@pytest.mark.parametrize(
    ("typed", "suggested"),
    [
        ("h", ["h-45abd3"]),
        ("grpo", ["grpo-7b-aa11bb", "grpo-7b-cc22dd"]),
        ("h-45abd8", ["h-45abd3"]),
        ("gpro-7b", ["grpo-7b-cc22dd"]),
        ("sftt", ["sft"]),
        ("unlike", []),
        ("", []),
    ],
)
def test_similar_ids_are_suggested(typed, suggested):
    assert similar_runs(typed) == suggested


def test_what_may_be_new_is_no_beginning_of_another():
    assert similar_runs("h", may_be_new=True) == []
    assert similar_runs("h-45abd8", may_be_new=True) == ["h-45abd3"]


@pytest.mark.parametrize("command", [["ack"], ["silence", "--list"], ["samples"], ["status"]])
def test_every_command_suggests_the_run(command):
    result = CliRunner().invoke(app, [command[0], "h-45abd8", *command[1:]])

    assert result.exit_code == 2
    assert "no run 'h-45abd8'" in result.stderr
    assert "Did you mean 'h-45abd3'?" in result.stderr


@pytest.mark.parametrize("command", [["ack"], ["silence", "--list"], ["samples"], ["report"]])
def test_the_beginning_of_an_id_is_enough_if_no_other_run_has_it(command, tmp_path):
    """The end of an id is chosen by sentinel, so it need not be typed."""
    result = CliRunner().invoke(app, [command[0], "h", *command[1:]])

    assert f"no run 'h-45abd3' under {tmp_path}" in result.stderr
    assert resolve_run("grpo") == "grpo"
    assert resolve_run("sft") == "sft"


def test_the_shell_completes_run_ids_the_newest_first():
    assert complete_run("gr") == ["grpo-7b-aa11bb", "grpo-7b-cc22dd"]
    assert complete_run("x") == []


def test_the_shell_completes_names_of_detectors():
    assert complete_detector("kl_") == ["kl_blowup", "kl_drift", "kl_negative"]
    assert not [name for name in complete_detector("") if name.startswith("_")]
