"""A scripted agent answers questions about labelled logs and runs by calls of the tools alone.

It reads nothing of the runs themselves, and no answer is longer than 500 tokens.
"""

from __future__ import annotations

import json

import pytest
from support import signal_faults
from support.mcp_clients import call_tools
from support.rank_processes import until
from support.signal_faults import ONSET, make_rows
from support.stored_homes import write_run

from sentinel.config.settings import load_replay_settings
from sentinel.mcp.fence import MAX_CHARS
from sentinel.mcp.server import make_server
from sentinel.store.imports.log_worker import cached_import
from sentinel.web.home.home_runs import HomeRuns
from sentinel.web.home.run_list import RunQuery
from sentinel.web.logs.log_runs import LogRuns

TIMEOUT_SECONDS = 240.0
NEAR_STEPS = 12
"""How far an onset may be from its label."""
HEALTHY = {"healthy", "ended_well"}


def broken_rows():
    rows = make_rows(signal_faults.pretraining, 0, 1)
    return [row | {"loss": float("nan")} if row["step"] > 200 else row for row in rows]


LOGS = {
    # Name: rows, whether it is healthy, onset, what is wrong, and a signal that shows it.
    "grpo": (make_rows(signal_faults.grpo, 0, 1), True, None, None, "reward"),
    "preferences": (make_rows(signal_faults.preferences, 0, 1), True, None, None, "loss"),
    "broken": (broken_rows(), False, 201, "numerical_breakdown", "loss"),
    "growth": (
        *(make_rows(signal_faults.reward_growth, 2, 1), False, ONSET),
        *("reward_explosion", "reward"),
    ),
    "tools": (
        *(make_rows(signal_faults.tool_errors, 2, 1), False, ONSET),
        *("tool_errors", "tool_error_fraction"),
    ),
}


class Agent:
    """Calls tools, reads their answers as a model would, and keeps to a budget of tokens."""

    def __init__(self, server):
        self._server = server

    def ask(self, tool, **given):
        (answer,) = call_tools(self._server, (tool, given))
        assert len(answer.text) <= MAX_CHARS, tool
        return answer.data

    def is_healthy(self, run):
        return self.ask("health", run=run)["status"] in HEALTHY

    def onset(self, run):
        return self.ask("health", run=run)["onset_step"]

    def reasons(self, run):
        """The cause, else the possible causes and the detector; none of a healthy run."""
        if self.is_healthy(run):
            return []
        why = self.ask("why", run=run)
        assert why["evidence"]
        assert why["remedy"]
        assert why["check"]
        return (
            [why["cause"]] if why["cause"] else [*why.get("possible_causes", ()), why["detector"]]
        )

    def checkpoint(self, run):
        """The step of the checkpoint to resume from."""
        return self.ask("last_good_checkpoint", run=run)["last_good_checkpoint"]["step"]

    def unseen(self, run):
        """What of the run is not monitored, and how old the data are."""
        found = self.ask("health", run=run)
        return found.get("not_monitored", ""), found["data_age"]

    def change(self, run, signal):
        """The signal before and after the onset; both are those of its end if it is healthy."""
        onset = self.onset(run)
        found = self.ask("curve", run=run, signal=signal, **({"step": onset} if onset else {}))
        known = [
            (step, value)
            for step, value in zip(found["step"], found["value"], strict=True)
            if value is not None
        ]
        before = [value for step, value in known if onset is None or step < onset]
        is_lost = bool(found["not_finite_at"])
        return before[-1], float("nan") if is_lost else known[-1][1]


@pytest.fixture(scope="module")
def logs(tmp_path_factory):
    folder = tmp_path_factory.mktemp("logs")
    settings = load_replay_settings((), {})
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("XDG_CACHE_HOME", str(folder / "cache"))
        for name, (rows, *_) in LOGS.items():
            path = folder / f"{name}.jsonl"
            path.write_text("".join(json.dumps(row) + "\n" for row in rows))
            # The server would start a process for each.
            cached_import(path, settings, run=name)
        runs = LogRuns(folder, settings)
        runs.start()
        until(lambda: are_read(runs), TIMEOUT_SECONDS, "the logs are read")
        yield Agent(make_server(runs))
        runs.close()


def are_read(runs):
    listed = runs.list_runs(RunQuery())["runs"]
    return len(listed) == len(LOGS) and all(each["state"] != "reading" for each in listed)


@pytest.mark.parametrize("run", LOGS)
def test_an_agent_answers_about_a_log(logs, run):
    """Five questions: is it healthy, since when, why, what did the signal do, what is not seen."""
    _, is_healthy, onset, reason, signal = LOGS[run]

    assert logs.is_healthy(run) == is_healthy
    found = logs.onset(run)
    assert found is None if onset is None else abs(found - onset) <= NEAR_STEPS
    assert (reason in logs.reasons(run)) if reason else logs.reasons(run) == []
    before, after = logs.change(run, signal)
    assert is_healthy or after != pytest.approx(before, rel=0.5)
    not_monitored, age = logs.unseen(run)
    assert not_monitored == ""
    assert age


def test_an_agent_answers_about_stored_runs(tmp_path, monkeypatch):
    """Four questions each: is it healthy, since when, why, and where to resume."""
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path))
    write_run(tmp_path, run="good", steps=60, ranks=1)
    write_run(tmp_path, run="sick", steps=130, ranks=1, fault_at=90)
    runs = HomeRuns(lambda _: {})
    runs.start()
    agent = Agent(make_server(runs))

    assert (agent.is_healthy("good"), agent.is_healthy("sick")) == (True, False)
    assert agent.onset("good") is None
    assert agent.onset("sick") == pytest.approx(91, abs=NEAR_STEPS)
    assert (agent.reasons("good"), agent.reasons("sick")) == ([], ["policy_collapse"])
    assert (agent.checkpoint("good"), agent.checkpoint("sick")) == (50, 50)
    runs.close()
