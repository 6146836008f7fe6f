"""Tests that a killed agent loses no record, changes no result and repeats no notification."""

from __future__ import annotations

import json
import os
import random
import subprocess
import sys
from contextlib import closing
from functools import partial

import pytest
from support.rank_processes import ranks, release, until
from support.webhook_receiver import Receiver

from sentinel.model.notification import NotificationReason
from sentinel.model.record import Event
from sentinel.store import notification_codec
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.transport.paths import current_run_dir

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]

STEPS, STEP_SECONDS = 400, 0.02
KILLS = min(int(os.environ.get("CHAOS_KILLS", "4")), 12)
"""Kills of the agent; each takes seconds, so that `make soak` does no more than 12 per round."""
KL = [0.02 + 0.0001 * step for step in range(200)] + [0.05 * 1.05**step for step in range(200)]


@pytest.fixture
def receiver(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "1")
    # The ranks wait for the last kill, which takes long on a busy machine.
    monkeypatch.setenv("SENTINEL_DETECTORS__RUN_STALLED__FLOOR", "3600")
    with Receiver() as receiver:
        monkeypatch.setenv("SENTINEL_SINKS__WEBHOOK__URL", receiver.url)
        yield receiver


def start_agent(run):
    command = [sys.executable, "-m", "sentinel", "agent", "--run", run]
    return subprocess.Popen(command, stderr=subprocess.DEVNULL)


def run_with_kills(run, kills):
    """Steps and outbox rows of a run during which the agent is killed that often.

    The ranks end after the last kill, so that no agent stops before it is killed.
    """
    random_ = random.Random(run)
    with ranks() as start_rank:
        trainers = [
            start_rank(
                rank,
                run=run,
                steps=STEPS,
                every=STEP_SECONDS,
                ending="finished",
                values={"kl": [value * (1 + rank) for value in KL]},
                hold=True,
                wait=False,
            )
            for rank in (0, 1)
        ]
        agent = start_agent(run)
        for _ in range(kills):
            until(partial(is_agent_up, run, agent.pid), 240.0, "agent started")
            with pytest.raises(subprocess.TimeoutExpired):
                agent.wait(random_.uniform(0.1, 1.0))
            agent.kill()
            agent.wait()
            agent = start_agent(run)
        for trainer in trainers:
            release(trainer)
        assert agent.wait(300.0) == 0
    with closing(connect(current_run_dir(run) / "sentinel.db")) as database:
        records = [each for each in History(database).records(run) if each.event is Event.STEP]
        rows = database.execute(
            "select notification, state from outbox order by created"
        ).fetchall()
    return [(record.step, dict(record.values)) for record in records], rows


def is_agent_up(run, pid):
    try:
        return json.loads((current_run_dir(run) / "agent.json").read_text())["pid"] == pid
    except FileNotFoundError:
        return False


def decode(rows):
    """State and notification of each row, without the updates of unsent messages."""
    decoded = [(state, notification_codec.decode(text)) for text, state in rows]
    return [pair for pair in decoded if pair[1].reason is not NotificationReason.UPDATED]


def names(rows):
    """Names without the run of the notifications."""
    return sorted(each.name.partition("/")[2] for _, each in decode(rows))


def delivered_cases(rows):
    """Cases of which the receiver has a message."""
    delivered = {each.incident.name for state, each in decode(rows) if state == "delivered"}
    return sorted(name.partition("/")[2] for name in delivered)


@pytest.mark.fault("A1")
def test_kills_change_neither_history_nor_notifications(receiver):
    """What an agent that catches up has not sent yet is part of what follows it."""
    expected_steps, expected_rows = run_with_kills("undisturbed", kills=0)
    delivered = len(receiver.accepted)
    steps, rows = run_with_kills("killed", kills=KILLS)

    assert [step for step, _ in expected_steps] == list(range(1, STEPS + 1))
    assert steps == expected_steps
    assert {state for _, state in rows} <= {"delivered", "merged"}
    assert "kl_blowup#1:opened" in names(rows)
    assert names(rows) == names(expected_rows)
    assert delivered_cases(rows) == delivered_cases(expected_rows)
    # Only a kill between a response and its commit can repeat a delivery.
    assert len(receiver.accepted) - delivered <= delivered + KILLS
