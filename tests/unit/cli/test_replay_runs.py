"""`sentinel replay` of a run that sentinel monitored: its stored records are evaluated again."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from support.replays import replay_incidents, run_replay
from support.stored_homes import write_run

from sentinel.store.run_reader import RunReader

RUN = "collapse-1"


@pytest.fixture(scope="module")
def database(tmp_path_factory):
    return write_run(tmp_path_factory.mktemp("home"), run=RUN, steps=240, fault_at=100)


@pytest.fixture(autouse=True)
def home(database, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(database.parents[2]))


@pytest.mark.parametrize("part", ["id", "folder", "database"])
def test_it_finds_what_was_found_live(database, part):
    path = {"id": RUN, "folder": database.parent, "database": database}[part]
    incidents, summary = replay_incidents(path)

    def steps(found):
        return {each["detector"]: (each["onset_step"], each["opened_step"]) for each in found}

    assert steps(incidents) == steps(RunReader(database).incidents())
    assert summary["steps"] == 241


def test_a_database_is_given_relative_to_the_working_directory(database, monkeypatch):
    monkeypatch.chdir(database.parent)

    assert replay_incidents(Path(database.name))[1]["steps"] == 241


def test_other_settings_find_something_else():
    shown = run_replay(RUN, "--set", "disable=kl_blowup").stdout

    assert "reward_collapse" in shown
    assert "kl_blowup" not in shown


def test_a_mistyped_run_is_suggested():
    result = run_replay("collapse")

    assert result.exit_code == 2
    assert f"Did you mean '{RUN}'?" in result.stderr


def test_each_training_of_one_log_is_replayed_under_its_name(tmp_path):
    path = tmp_path / "log.jsonl"
    rows = [
        {
            "step": step,
            "run_id": name,
            "loss": "NaN" if f"{name}{step}" == "b40" else 1.0 + step / 99,
        }
        for step in range(1, 50)
        for name in "ab"
    ]
    path.write_text("".join(f"{json.dumps(row)}\n" for row in rows))
    lines = [json.loads(line) for line in run_replay(path, "--json").stdout.splitlines()]

    found = [(line.get("run"), line["detector"]) for line in lines if line["type"] == "incident"]
    assert ("run_id=b", "nan_or_inf") in found
    assert None not in [run for run, _ in found]
    assert [line.get("run") for line in lines if line["type"] == "summary"] == [None, "run_id=b"]
