"""The command lines that are parsed without typer mean what they mean with it."""

from __future__ import annotations

import os
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel import __main__
from sentinel.agent import command_runner
from sentinel.cli import _agent_service
from sentinel.cli.main import app

WORDS = ["--", "--run", "--config", "--run=x", "-c", "--help", "a", "b.toml", ""]


def calls(monkeypatch, start, arguments):
    """What `start` does with the command line: the calls of `run` and `agent`, and the status."""
    done = []
    monkeypatch.setattr(sys, "argv", ["sentinel", *arguments])
    monkeypatch.setattr(command_runner, "run_command", lambda *given: done.append(given) or 7)
    monkeypatch.setattr(_agent_service, "serve_run", lambda run, _: done.append(run) or 7)
    with pytest.raises(SystemExit) as exit_error:
        start()
    return [*done, exit_error.value.code]


@pytest.mark.parametrize("command", ["run", "agent"])
@given(words=st.lists(st.sampled_from(WORDS), max_size=6))
def test_a_command_line_means_the_same_with_and_without_typer(command, words):
    with pytest.MonkeyPatch.context() as patched:
        expected = calls(patched, app, [command, *words])
        assert calls(patched, __main__.main, [command, *words]) == expected


def test_the_usual_command_lines_need_no_typer(monkeypatch):
    monkeypatch.setattr("sentinel.cli.main.app", lambda: pytest.fail("typer was used"))

    assert calls(monkeypatch, __main__.main, ["agent", "--run", "r"]) == ["r", 7]
    assert calls(monkeypatch, __main__.main, ["run", "--run", "r", "--", "true"]) == [
        (["true"], "r", None),
        7,
    ]


@pytest.mark.parametrize(
    ("arguments", "expected"),
    [
        (["agent", "--run", "r"], "__all__"),
        (["--version"], "__all__"),
        (["run", "--", "true"], None),
        (["run", "--", "-c"], None),
    ],
)
def test_only_a_program_of_the_user_uses_plug_ins_of_pydantic(monkeypatch, arguments, expected):
    monkeypatch.setattr(os, "environ", {})
    calls(monkeypatch, __main__.main, arguments)

    assert os.environ.get("PYDANTIC_DISABLE_PLUGINS") == expected
