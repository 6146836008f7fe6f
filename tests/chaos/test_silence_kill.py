"""Tests that notifications held back by a silence survive kills and are sent once."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from contextlib import closing
from functools import partial

import pytest
from support.rank_processes import ranks, release, until
from support.webhook_receiver import Receiver

from sentinel.store import notification_codec, silences
from sentinel.store.database import connect
from sentinel.store.silences import Silence
from sentinel.transport.paths import current_run_dir, run_dir

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

TIMEOUT_SECONDS = 240.0
NAN = float("nan")
FLAPPING = [1.0] * 4 + ([NAN] * 6 + [1.0] * 20) * 4
DIVERGED = [1.0] * 4 + [NAN] * 60


@pytest.fixture
def receiver(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "1")
    for name in ("RESOLVE", "COOLDOWN"):
        monkeypatch.setenv(f"SENTINEL_{name}_SECONDS", "0")
    monkeypatch.setenv("SENTINEL_DETECTORS__RUN_STALLED__FLOOR", "3600")
    with Receiver() as receiver:
        monkeypatch.setenv("SENTINEL_SINKS__WEBHOOK__URL", receiver.url)
        yield receiver


class MonitoredRun:
    """A run of one rank, and the agents that monitor it one after the other."""

    def __init__(self, start_rank, run, losses):
        self.run = run
        run_dir(run)
        values = {"loss": losses}
        self.trainer = start_rank(
            0, run=run, world=1, steps=len(losses), every=0.02, ending="finished",
            values=values, hold=True, wait=False,
        )  # fmt: skip
        self.agent = None

    def start_agent(self):
        command = [sys.executable, "-m", "sentinel", "agent", "--run", self.run]
        self.agent = subprocess.Popen(command, stderr=subprocess.DEVNULL)
        until(self._is_agent_up, TIMEOUT_SECONDS, "agent started")

    def kill(self):
        self.agent.kill()
        self.agent.wait()

    def finish(self):
        """End the rank, and wait until the agent stops."""
        release(self.trainer)
        assert self.agent.wait(TIMEOUT_SECONDS) == 0

    def _is_agent_up(self):
        try:
            agent = json.loads((current_run_dir(self.run) / "agent.json").read_text())
        except FileNotFoundError:
            return False
        return agent["pid"] == self.agent.pid

    def rows(self, query):
        """Rows of the database of the run."""
        with closing(connect(current_run_dir(self.run) / "sentinel.db")) as database:
            return database.execute(query).fetchall()

    def step_count(self):
        """Number of processed steps."""
        return self.rows("select count(*) from step where event = 'step'")[0][0]

    def notifications(self):
        """Detector, episode and reason of each queued notification."""
        texts = self.rows("select notification from outbox order by rowid")
        return [notification_codec.decode(text).name.rpartition("/")[2] for (text,) in texts]


def of_detector(names, detector):
    return [name for name in names if name.startswith(detector)]


def test_a_silenced_notification_is_sent_once_after_kills(receiver):
    with closing(connect(run_dir("silenced") / "sentinel.db")) as connection:
        silences.add_silence(connection, Silence("", time.time(), time.time() + 3600, "ana"))
    with ranks() as start_rank:
        run = MonitoredRun(start_rank, "silenced", DIVERGED)
        run.start_agent()
        until(
            lambda: run.rows("select 1 from pending_notification"),
            TIMEOUT_SECONDS,
            "notification pending",
        )
        run.kill()
        run.start_agent()
        until(lambda: run.step_count() == len(DIVERGED), TIMEOUT_SECONDS, "every step processed")
        assert run.notifications() == []
        run.kill()
        with closing(connect(current_run_dir("silenced") / "sentinel.db")) as connection:
            silences.expire_silences(connection, "", time.time())
        run.start_agent()
        until(partial(is_queued, run, "nan_or_inf#1:opened"), TIMEOUT_SECONDS, "sent")
        run.kill()
        run.start_agent()
        run.finish()
    assert of_detector(run.notifications(), "nan_or_inf") == [
        "nan_or_inf#1:opened",
        "nan_or_inf#1:ended",
    ]
    assert run.rows("select 1 from pending_notification") == []


def is_queued(run, name):
    return name in run.notifications()


@pytest.mark.fault("D13")
def test_a_flapping_incident_is_sent_once_after_kills(receiver):
    with ranks() as start_rank:
        run = MonitoredRun(start_rank, "flapping", FLAPPING)
        for steps in (8, 28, 40, 60, 90):
            run.start_agent()
            until(lambda steps=steps: run.step_count() >= steps, TIMEOUT_SECONDS, "steps processed")
            run.kill()
        run.start_agent()
        until(lambda: run.step_count() == len(FLAPPING), TIMEOUT_SECONDS, "every step processed")
        run.finish()
    names = of_detector(run.notifications(), "nan_or_inf")
    (body,) = run.rows("select body from incident where detector = 'nan_or_inf'")

    assert len(set(names)) == len(names)
    assert [name for name in names if name.endswith("opened")] == ["nan_or_inf#1:opened"]
    assert names[-1] == "nan_or_inf#1:resolved"
    assert json.loads(body[0])["flaps"] == 3
