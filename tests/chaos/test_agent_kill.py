"""An agent killed at any moment loses no record, changes no verdict, and tells nothing twice."""

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

from sentinel.notify import notification_codec
from sentinel.store.database import connect
from sentinel.transport.paths import run_dir

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]

STEPS, EVERY = 400, 0.02
KILLS = int(os.environ.get("SENTINEL_TEST_KILLS", "5"))
KL = [0.02 + 0.0001 * step for step in range(200)] + [0.05 * 1.05**step for step in range(200)]


@pytest.fixture
def receiver(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "1")
    # The ranks stand still until the last kill, and on a busy machine that may be long.
    monkeypatch.setenv("SENTINEL_DETECTORS__RUN_STALLED__FLOOR", "3600")
    with Receiver() as receiver:
        monkeypatch.setenv("SENTINEL_SINKS__WEBHOOK__URL", receiver.url)
        yield receiver


def agent(run):
    words = [sys.executable, "-m", "sentinel", "agent", "--run", run]
    return subprocess.Popen(words, stderr=subprocess.DEVNULL)


def watched(run, kills):
    """What the database holds after a run during which the agent was killed that often.

    The ranks end after the last kill, so that no agent has left by itself when it is to be killed.
    """
    dice = random.Random(run)
    with ranks() as begin:
        trainers = [
            begin(
                rank,
                run=run,
                steps=STEPS,
                every=EVERY,
                ending="finished",
                values={"kl": [value * (1 + rank) for value in KL]},
                hold=True,
                wait=False,
            )
            for rank in (0, 1)
        ]
        serving = agent(run)
        for _ in range(kills):
            until(partial(serves, run, serving.pid), 120.0, "the agent is up")
            with pytest.raises(subprocess.TimeoutExpired):
                serving.wait(dice.uniform(0.1, 1.0))
            serving.kill()
            serving.wait()
            serving = agent(run)
        for trainer in trainers:
            release(trainer)
        assert serving.wait(300.0) == 0
    with closing(connect(run_dir(run) / "sentinel.db")) as database:
        steps = database.execute("select step, vals from step where event = 'step'").fetchall()
        pages = database.execute("select notification, state from outbox order by created").fetchall()
    return [(step, json.loads(values)) for step, values in steps], pages


def serves(run, pid):
    try:
        return json.loads((run_dir(run) / "agent.json").read_text())["pid"] == pid
    except FileNotFoundError:
        return False


def names(pages):
    return [(page.name.partition("/")[2], page.step) for page in map(decoded, pages)]


def decoded(row):
    return notification_codec.decode(row[0])


def test_kills_leave_no_trace_in_history_verdicts_or_pages(receiver):
    calm_steps, calm_pages = watched("calm", kills=0)
    told = len(receiver.accepted)
    steps, pages = watched("stormy", kills=KILLS)

    assert [step for step, _ in calm_steps] == list(range(1, STEPS + 1))
    assert steps == calm_steps
    assert [state for _, state in pages] == ["delivered"] * len(pages)
    assert "kl_blowup#1:opened" in [name for name, _ in names(pages)]
    assert names(pages) == names(calm_pages)
    # A kill between the receiver's answer and its commit may repeat a page, and nothing else may.
    assert told <= len(receiver.accepted) - told <= told + KILLS
