"""The state of a run without an agent: what the agent showed last."""

from __future__ import annotations

import re
from contextlib import closing
from dataclasses import replace

import pytest
from support.stored_homes import BEGIN, StoredRun, write_run

from sentinel.metrics.exposition import Exposition
from sentinel.metrics.stored_state import stored_state
from sentinel.model.counters import Counters
from sentinel.model.finding import Severity
from sentinel.store.database import connect
from sentinel.store.silences import acknowledge


@pytest.fixture(scope="module")
def collapsed(tmp_path_factory):
    """The database of a run whose agent was killed while a case was open."""
    metadata = {"sentinel/project": "math", "sentinel/tags": "ablation,seed 1", "host": "gpu-3"}
    plan = StoredRun(steps=160, ranks=2, fault_at=80, outcome="", metadata=metadata)
    return write_run(tmp_path_factory.mktemp("home"), replace(plan, node_every=0))


def test_the_state_has_every_key_that_an_agent_shows(collapsed):
    """So the page needs no other code for a run of long ago."""
    assert stored_state(collapsed).keys() == Exposition(Counters(), {}).state().keys()


def test_a_killed_run_is_unfinished_with_its_open_case(collapsed):
    state = stored_state(collapsed)
    (case, *_) = state["cases"]

    assert (state["run"], state["state"], state["active"], state["is_live"]) == (
        "grpo-7b",
        "unfinished",
        False,
        False,
    )
    # The last step still waited for its other rank.
    assert (state["step"], state["started"], state["host"]) == (159, BEGIN, "gpu-3")
    assert (state["project"], state["tags"]) == ("math", ["ablation", "seed 1"])
    assert (case["severity"], case["state"]) == (Severity.CRITICAL.value, "firing")
    assert case["message"]["subject"]
    assert set(case["incidents"]) & {each["name"] for each in state["incidents"]}
    assert state["signals"]["reward"]["value"] < 0.2
    assert "loss" in state["monitored"] or "reward" in state["monitored"]


def test_all_that_is_stored_is_counted_and_each_rank_is_shown(tmp_path):
    path = write_run(tmp_path, steps=40, ranks=3, save_every=10)
    state = stored_state(path)

    assert (state["steps"], state["checkpoints"]) == (40, 4)
    assert list(state["ranks"]) == ["0", "1", "2"]
    assert not any(each["up"] for each in state["ranks"].values())
    assert all(each["step"] == state["step"] for each in state["ranks"].values())
    assert all(each["step_time"] > 0 for each in state["ranks"].values())


def test_a_run_that_never_ended_has_no_end(collapsed):
    assert stored_state(collapsed)["ended"] is None


def test_a_case_states_what_was_found_when_and_the_last_values(collapsed):
    """Its finding, of when it opened, is no news of a KL that has grown 30 times since."""
    (case, *_) = stored_state(collapsed)["cases"]

    assert re.match(
        r"Policy collapse, as of step 1\d\d: KL to the reference is", case["message"]["subject"]
    )
    assert re.search(
        r"^Last, at step 159: reward -?0\.\d+, KL to the reference 1\d\d\.\d nats, ", case["now"]
    )


def test_an_acknowledgement_is_shown(collapsed):
    (incident, *_) = stored_state(collapsed)["incidents"]
    with closing(connect(collapsed)) as connection:
        acknowledge(connection, incident["detector"], BEGIN, "ana", "known")
    shown = {each["name"]: each for each in stored_state(collapsed)["incidents"]}

    assert shown[incident["name"]]["acknowledged"]["author"] == "ana"


@pytest.mark.parametrize(
    ("outcome", "state"), [("finished", "finished"), ("exception", "failed"), ("died", "died")]
)
def test_the_outcome_is_that_of_the_run(tmp_path, outcome, state):
    path = write_run(tmp_path, steps=20, ranks=1, outcome=outcome, kind="sft")
    stored = stored_state(path)

    assert (stored["state"], stored["is_live"]) == (state, False)
    assert stored["ended"] > stored["started"]


def test_an_empty_database_is_a_run_before_its_first_step(tmp_path):
    path = tmp_path / "empty/sentinel.db"
    path.parent.mkdir()
    connect(path).close()
    state = stored_state(path)

    assert (state["run"], state["step"], state["cases"], state["signals"]) == (
        "empty",
        None,
        [],
        {},
    )
