"""A run that starts again under its id is monitored as its next attempt."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.rank_processes import until

from sentinel.transport.paths import current_run_dir

SCRIPT = """
import sys, time
import sentinel

@sentinel.monitor
def train():
    for step in range(1, 30):
        sentinel.log({"reward": 1.0}, step=step)
        time.sleep(0.02)
    if sys.argv[1] == "raise":
        raise ValueError
train()
"""


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_RUN_ID", "requeued")
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0")


def train(ending, outcome):
    """Train once, and wait for the outcome and for the exit of the agent."""
    command = [sys.executable, "-c", SCRIPT, ending]
    subprocess.run(command, timeout=240, stderr=subprocess.DEVNULL, check=False)
    until(lambda: outcome_file().get("outcome") == outcome, 240.0, f"the outcome is {outcome}")
    until(
        lambda: not (current_run_dir("requeued") / "agent.json").exists(),
        240.0,
        "the agent has ended",
    )


def outcome_file():
    try:
        return json.loads((current_run_dir("requeued") / "outcome.json").read_text())
    except FileNotFoundError:
        return {}


def test_a_requeued_run_is_the_next_attempt():
    train("return", "finished")
    train("raise", "exception")

    # The agent moves the file at its end.
    until(lambda: outcome_file().get("attempt") == 1, 240.0, "the outcome is that of attempt 1")
    rings = Path(os.environ["SENTINEL_RUNTIME_DIR"])
    until(lambda: not list(rings.iterdir()), 240.0, "the rings are removed")
