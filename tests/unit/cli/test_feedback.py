"""`sentinel feedback` for a run that is over."""

from __future__ import annotations

import json

import pytest
from support.stored_homes import write_run
from typer.testing import CliRunner

from sentinel.cli.main import app


@pytest.fixture(scope="module")
def stored(tmp_path_factory):
    home = tmp_path_factory.mktemp("home")
    write_run(home, run="collapse-2", steps=110, fault_at=60)
    return home


@pytest.fixture(autouse=True)
def home(stored, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(stored))


def sentinel(*arguments):
    return CliRunner().invoke(app, [*arguments])


def name_of_case():
    return json.loads(sentinel("status", "collapse-2", "--json").stdout)["verdict"]["case"]


def test_a_mark_is_stored_and_shown_in_the_report():
    name = name_of_case()
    result = sentinel("feedback", name, "false", "--comment", "a drill", "--json")
    assert result.exit_code == 0
    assert json.loads(result.stdout)["mark"] == "false"

    short = name.partition("/")[2]
    shown = sentinel("feedback", short, "useful", "--comment", "real", "--run", "collapse").stdout
    assert shown.startswith(f"{name}: Marked as useful by ")
    report = sentinel("report", "collapse-2", "--md").stdout
    assert "Marked as useful by" in report
    assert "real" in report
    assert "drill" not in report


def test_the_beginning_of_the_run_is_enough():
    short = name_of_case().partition("/")[2]
    result = sentinel("feedback", f"collapse/{short}", "useful")

    assert result.exit_code == 0, result.stderr
    assert result.stdout.startswith(f"collapse-2/{short}: ")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["collapse-2/policy_colapse#1", "false"], "Did you mean '"),
        (["collapse-3/x#1", "false"], "Did you mean 'collapse-2'?"),
        (["x#1", "false"], "give --run RUN, or the whole name: RUN/x#1"),
        (["collapse-2/x#1", "bad"], "the mark must be false or useful."),
    ],
)
def test_another_case_run_or_mark_is_an_error(arguments, message):
    result = sentinel("feedback", *arguments)

    assert result.exit_code == 2
    assert message in result.stderr
