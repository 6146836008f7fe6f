"""`sentinel replay` of a run that sentinel monitored: its stored records are evaluated again."""

from __future__ import annotations

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


def test_other_settings_find_something_else():
    shown = run_replay(RUN, "--set", "disable=kl_blowup").stdout

    assert "reward_collapse" in shown
    assert "kl_blowup" not in shown


def test_a_mistyped_run_is_suggested():
    result = run_replay("collapse")

    assert result.exit_code == 2
    assert f"Did you mean '{RUN}'?" in result.stderr
