"""An agent that is stopped, starved, dead or of another version does not touch the training.

The trainings run in this process, so that it can be seen whether a call of `log()` ever waits.
"""

from __future__ import annotations

import multiprocessing
import os
import re
import resource
import signal
import subprocess
import sys
import time
import urllib.request
from contextlib import closing, contextmanager
from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from support.acknowledged_runs import isolated, start_agent
from support.rank_processes import until

import sentinel
from sentinel.client import session
from sentinel.store.database import connect
from sentinel.store.journal import Journal
from sentinel.transport.paths import current_run_dir, ring_path
from sentinel.transport.ring import MIN_CAPACITY_BYTES, RingReader
from sentinel.transport.ring_layout import RING_VERSION

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(600)]

RUN = "unresponsive"
VALUES = {f"signal_{at}": at * 0.5 for at in range(20)}
TIMEOUT_SECONDS = 240.0
MAX_GROWTH_BYTES = 8 << 20


@pytest.fixture(autouse=True)
def environment(tmp_path, monkeypatch):
    for name, value in isolated(tmp_path).items():
        monkeypatch.setenv(name, value)
    monkeypatch.setenv("SENTINEL_RUN_ID", RUN)
    # A write to a ring on a disk waits while the kernel writes its page out.
    with TemporaryDirectory(prefix="sentinel-test-", dir="/dev/shm") as rings:
        monkeypatch.setenv("SENTINEL_RUNTIME_DIR", rings)
        yield


class Training:
    """Logs steps in this process, and counts how often a call gave up the processor."""

    def __init__(self):
        self.step = self.waits = 0

    def log(self, steps):
        # Other threads of pytest get the interpreter's lock only from a call that waits.
        interval = sys.getswitchinterval()
        sys.setswitchinterval(60.0)
        # One that waits for the lock already does so with the interval of before.
        time.sleep(0.05)
        try:
            for _ in range(steps):
                self.step += 1
                self.waits -= resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
                sentinel.log(VALUES, step=self.step)
                self.waits += resource.getrusage(resource.RUSAGE_THREAD).ru_nvcsw
        finally:
            sys.setswitchinterval(interval)


@contextmanager
def agent_of_the_run(stderr=subprocess.DEVNULL):
    agent = start_agent(RUN, stderr)
    try:
        yield agent
    finally:
        agent.kill()
        agent.wait()


def query(text):
    with closing(connect(current_run_dir(RUN) / "sentinel.db")) as database:
        return database.execute(text).fetchall()


def stored_steps():
    return [step for (step,) in query("select step from step where event = 'step' order by id")]


def dropped():
    """Dropped records by reason, as the agent exports them."""
    url = re.search(r'"url": "([^"]+)"', (current_run_dir(RUN) / "agent.json").read_text())[1]
    text = urllib.request.urlopen(f"{url}/metrics", timeout=240).read().decode()
    pattern = r'^sentinel_dropped_records_total\{.*?reason="(\w+)".*?\} (\S+)$'
    return {reason: float(n) for reason, n in re.findall(pattern, text, re.MULTILINE) if float(n)}


@pytest.mark.fault("A3", "A2", "I9")
def test_a_stopped_and_then_a_dead_agent_are_not_noticed_by_the_training(monkeypatch):
    monkeypatch.setattr(session, "fitting_capacity", lambda *_, **__: 4 * MIN_CAPACITY_BYTES)
    training = Training()
    with sentinel.monitor(agent=False):
        with agent_of_the_run() as agent:
            training.log(100)
            until(lambda: len(stored_steps()) >= 98, TIMEOUT_SECONDS, "the first steps are stored")
            os.kill(agent.pid, signal.SIGSTOP)
            training.log(500)
            os.kill(agent.pid, signal.SIGCONT)
            until(lambda: len(stored_steps()) >= 598, TIMEOUT_SECONDS, "the agent has caught up")
            assert dropped() == {}
        path = ring_path(RUN, 0, 0)
        with closing(connect(current_run_dir(RUN) / "sentinel.db")) as database:
            read_to = Journal(database).positions()[str(path)].cursor
        before = resident_bytes()
        training.log(30_000)
        assert resident_bytes() - before < MAX_GROWTH_BYTES
        assert training.waits == 0
        reader = RingReader(path)
        left = reader.read(read_to)
        reader.close()
        with agent_of_the_run():
            last = training.step - 2
            until(lambda: stored_steps()[-1] >= last, TIMEOUT_SECONDS, "the next agent caught up")
            counted = dropped()
    steps = stored_steps()
    assert counted == {"overrun": left.lost_frames}
    assert read_to.sequence + left.lost_frames + len(left.payloads) == left.cursor.sequence
    # Everything that was still in the ring: without a gap but that of the lost records.
    gaps = [(a, b) for a, b in pairwise(steps) if b != a + 1]
    assert len(gaps) == 1
    assert training.step - gaps[0][1] >= len(left.payloads) - 40
    assert query("select count(*) from outbox") == [(0,)]


def resident_bytes():
    return int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()


@pytest.mark.fault("A4")
def test_a_starved_agent_loses_nothing_and_reports_no_hang(monkeypatch):
    monkeypatch.setenv("SENTINEL_DETECTORS__RUN_STALLED__FLOOR", "30")
    context, training = multiprocessing.get_context("fork"), Training()
    with sentinel.monitor(agent=False), agent_of_the_run() as agent:
        os.setpriority(os.PRIO_PROCESS, agent.pid, 19)
        hogs = [context.Process(target=spin, args=(2.0,)) for _ in range(2 * (os.cpu_count() or 1))]
        for hog in hogs:
            hog.start()
        while any(hog.is_alive() for hog in hogs):
            training.log(10)
            time.sleep(0.005)
        for hog in hogs:
            hog.join()
        until(lambda: len(stored_steps()) >= training.step - 2, TIMEOUT_SECONDS, "it has caught up")
        assert dropped() == {}
    assert training.waits == 0
    assert query("select detector from incident") == []


def spin(seconds):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        pass


@pytest.mark.fault("A5")
def test_a_ring_of_another_version_is_rejected_and_logged(tmp_path):
    training, output = Training(), tmp_path / "agent.log"
    with sentinel.monitor(agent=False):
        path = ring_path(RUN, 0, 0)
        with path.open("r+b") as ring:
            ring.seek(8)
            ring.write((RING_VERSION + 1).to_bytes(8, "little"))
        with output.open("wb") as stderr, agent_of_the_run(stderr.fileno()):
            training.log(100)
            until(dropped, TIMEOUT_SECONDS, "it is counted")
            assert dropped() == {"ring_refused": 1.0}
            training.log(100)
    assert training.waits == 0
    assert path.exists()
    assert output.read_text().count(f"{path} has ring layout {RING_VERSION + 1}") == 1
