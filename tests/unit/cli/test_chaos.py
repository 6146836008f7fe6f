"""`sentinel chaos` refuses where a drill would be part of a real run, or has no sink."""

from __future__ import annotations

import json

import pytest
from typer.testing import CliRunner

from sentinel.cli.main import app
from sentinel.demo import drill
from sentinel.demo.drill_faults import FAULTS

SINK = {"SENTINEL_SINKS__WEBHOOK__URL": "http://127.0.0.1:9/"}
NAN = ["--fault", "nan"]


@pytest.fixture(autouse=True)
def outside_of_a_job(monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    for name in drill.JOB_VARIABLES:
        monkeypatch.delenv(name, raising=False)


def chaos(*words, **variables):
    return CliRunner().invoke(app, ["chaos", *words], env=variables)


@pytest.mark.parametrize(
    ("variables", "words", "message"),
    [
        ({}, NAN, "no sink is configured"),
        (SINK | {"SENTINEL_OFF": "1"}, NAN, "SENTINEL_OFF is set"),
        (SINK, ["--fault", "nann"], "Did you mean 'nan'?"),
        (SINK, [], "give a fault"),
        (SINK | {"SENTINEL_TIERS": "page"}, NAN, "is not known"),
    ],
)
def test_a_drill_that_cannot_be_run_states_why(variables, words, message):
    result = chaos(*words, **variables)

    assert (result.exit_code, result.stdout) == (2, "")
    assert message in result.stderr


@pytest.mark.parametrize("name", drill.JOB_VARIABLES)
def test_no_drill_runs_in_the_environment_of_a_job(name):
    result = chaos(*NAN, **SINK, **{name: "1"})

    assert result.exit_code == 2
    assert f"{name} is set" in result.stderr


def test_a_lost_node_needs_torch(monkeypatch):
    monkeypatch.setattr("sentinel.cli.chaos.find_spec", lambda _: None)
    result = chaos("--fault", "node_lost", **SINK)

    assert (result.exit_code, "pip install torch" in result.stderr) == (2, True)


def test_the_list_names_every_fault():
    lines = [json.loads(line) for line in chaos("--list", "--json").stdout.splitlines()]

    assert [line["fault"] for line in lines] == list(FAULTS)
    assert "rank_killed" in chaos("--list").stdout
