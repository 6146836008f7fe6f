"""A run that starts again under its id is monitored as its next attempt."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
import urllib.request
from pathlib import Path

import pytest
from prometheus_client.parser import text_string_to_metric_families
from support.rank_processes import has_ended, until

from sentinel.transport.paths import current_run_dir

SCRIPT = """
import sys, time
import sentinel

@sentinel.monitor
def train():
    for step in range(int(sys.argv[2]), 30):
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
    command = [sys.executable, "-c", SCRIPT, ending, "1"]
    subprocess.run(command, timeout=240, stderr=subprocess.DEVNULL, check=False)
    until(lambda: outcome_file().get("outcome") == outcome, 240.0, f"the outcome is {outcome}")
    until(lambda: has_ended(current_run_dir("requeued")), 240.0, "the agent has ended")


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


def test_the_use_of_time_continues_with_the_agent_of_the_next_attempt(monkeypatch):
    """The goodput of a requeued job is that of all its attempts."""
    began = time.time()
    train("return", "finished")
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "600")
    # It continues from a checkpoint.
    subprocess.run([sys.executable, "-c", SCRIPT, "return", "11"], timeout=240, check=True)
    agent = until(registration, 240.0, "the next agent serves")
    try:
        until(lambda: spent(agent["url"]).get("lost", 0.0) > 0.3, 240.0, "the steps done again")
        seconds = spent(agent["url"])
    finally:
        os.kill(agent["pid"], signal.SIGTERM)

    assert seconds["productive"] >= 28 * 0.02
    assert seconds["startup"] > 0.0
    assert seconds["down"] > 0.0
    assert sum(seconds.values()) < time.time() - began


def registration():
    try:
        return json.loads((current_run_dir("requeued") / "agent.json").read_text())
    except FileNotFoundError:
        return None


def spent(url):
    """Seconds by activity, from the metrics of the agent."""
    with urllib.request.urlopen(f"{url}/metrics", timeout=240) as answer:
        text = answer.read().decode()
    return {
        sample.labels["activity"]: sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
        if sample.name == "sentinel_run_time_seconds_total"
    }
