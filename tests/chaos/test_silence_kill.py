"""An agent killed while it keeps pages back owes the same to the next one, and tells it once."""

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

from sentinel.notify import notification_codec
from sentinel.store import silences
from sentinel.store.database import connect
from sentinel.store.silences import Silence
from sentinel.transport.paths import run_dir

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

PATIENCE = 120.0
BAD = float("nan")
FLAPPING = [1.0] * 4 + ([BAD] * 6 + [1.0] * 20) * 4
SICK = [1.0] * 4 + [BAD] * 60


@pytest.fixture
def receiver(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "1")
    monkeypatch.setenv("SENTINEL_DETECTORS__RUN_STALLED__FLOOR", "3600")
    with Receiver() as receiver:
        monkeypatch.setenv("SENTINEL_SINKS__WEBHOOK__URL", receiver.url)
        yield receiver


class Watched:
    """One run of one rank, and the agents that serve it one after the other."""

    def __init__(self, begin, run, losses):
        self.run = run
        run_dir(run)
        values = {"loss": losses}
        self.trainer = begin(
            0, run=run, world=1, steps=len(losses), every=0.02, ending="finished",
            values=values, hold=True, wait=False,
        )  # fmt: skip
        self.serving = None

    def serve(self):
        """A new agent, once it is up."""
        words = [sys.executable, "-m", "sentinel", "agent", "--run", self.run]
        self.serving = subprocess.Popen(words, stderr=subprocess.DEVNULL)
        until(self._up, PATIENCE, "the agent is up")

    def kill(self):
        """As the kernel does when memory is short."""
        self.serving.kill()
        self.serving.wait()

    def end(self):
        """Let the rank end, and wait for the agent to leave."""
        release(self.trainer)
        assert self.serving.wait(PATIENCE) == 0

    def _up(self):
        try:
            told = json.loads((run_dir(self.run) / "agent.json").read_text())
        except FileNotFoundError:
            return False
        return told["pid"] == self.serving.pid

    def rows(self, asked):
        """What the run's database holds."""
        with closing(connect(run_dir(self.run) / "sentinel.db")) as database:
            return database.execute(asked).fetchall()

    def steps(self):
        """How many steps were judged."""
        return self.rows("select count(*) from step where event = 'step'")[0][0]

    def pages(self):
        """Every page there is: detector and reason."""
        texts = self.rows("select page from outbox order by rowid")
        return [notification_codec.decode(text).name.rpartition("/")[2] for (text,) in texts]


def sequence(pages, detector):
    return [name for name in pages if name.startswith(detector)]


def test_a_silence_is_kept_and_paid_once_whoever_serves(receiver):
    with ranks() as begin, closing(connect(run_dir("hushed") / "sentinel.db")) as person:
        silences.add_silence(person, Silence("", time.time(), time.time() + 3600, "ana"))
        watched = Watched(begin, "hushed", SICK)
        watched.serve()
        until(lambda: watched.rows("select 1 from owed"), PATIENCE, "a page is owed")
        watched.kill()
        watched.serve()
        until(lambda: watched.steps() == len(SICK), PATIENCE, "every step is judged")
        assert watched.pages() == []
        watched.kill()
        silences.expire_silences(person, "", time.time())
        watched.serve()
        until(partial(told, watched, "nan_or_inf#1:opened"), PATIENCE, "it is told")
        watched.kill()
        watched.serve()
        watched.end()
    assert sequence(watched.pages(), "nan_or_inf") == ["nan_or_inf#1:opened"]
    assert watched.rows("select 1 from owed") == []


def told(watched, name):
    return name in watched.pages()


def test_what_comes_and_goes_is_told_once_however_often_the_agent_is_killed(receiver):
    with ranks() as begin:
        watched = Watched(begin, "flapping", FLAPPING)
        for reached in (8, 28, 40, 60, 90):
            watched.serve()
            until(lambda past=reached: watched.steps() >= past, PATIENCE, "steps are judged")
            watched.kill()
        watched.serve()
        until(lambda: watched.steps() == len(FLAPPING), PATIENCE, "every step is judged")
        watched.end()
    pages = sequence(watched.pages(), "nan_or_inf")
    (body,) = watched.rows("select body from incident where detector = 'nan_or_inf'")

    assert len(set(pages)) == len(pages)
    assert [name for name in pages if name.endswith("opened")] == ["nan_or_inf#1:opened"]
    assert pages[-1] == "nan_or_inf#1:resolved"
    assert json.loads(body[0])["flaps"] == 3
