"""Ends of real trainer processes: before an agent, interrupted, at shutdown; a pid used again."""

from __future__ import annotations

import json
import os
import random
import signal
import subprocess
import sys
from contextlib import closing
from pathlib import Path

import pytest

from sentinel.model.record import Event
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.transport import paths

pytestmark = pytest.mark.chaos

TIMEOUT_SECONDS = 240.0

SHORT = """
import sentinel

with sentinel.monitor(run="short", agent=False):
    for step in (1, 2, 3):
        sentinel.log({"loss": 5.0 - step / 1000}, step=step)
"""


@pytest.mark.fault("P12", "P13", "A9")
def test_an_agent_that_starts_after_the_end_stores_everything(script, monkeypatch):
    """Lock files and a registration of a dead process do not keep it from starting."""
    monkeypatch.setenv("SENTINEL_RUN_ID", "short")
    monkeypatch.setenv("SENTINEL_LINGER_SECONDS", "0")
    with subprocess.Popen(script(SHORT)) as trainer:
        assert trainer.wait(TIMEOUT_SECONDS) == 0
    directory = paths.run_dir("short")
    (directory / "agent.json").write_text(json.dumps({"pid": trainer.pid, "url": "http://x"}))
    for folder in (directory, paths.ring_dir("short")):
        (folder / "agent.lock").write_text(str(trainer.pid))

    agent = [sys.executable, "-m", "sentinel", "agent", "--run", "short"]
    subprocess.run(agent, check=True, timeout=TIMEOUT_SECONDS)

    with closing(connect(directory / "sentinel.db")) as database:
        records = History(database).records("short")
        assert [each.step for each in records if each.event is Event.STEP] == [1, 2, 3]
    assert json.loads((directory / "outcome.json").read_text())["outcome"] == "finished"
    assert list(Path(os.environ["SENTINEL_RUNTIME_DIR"]).iterdir()) == []


INTERRUPTED = """
import os, signal, sys, time
import sentinel

@sentinel.monitor(run="ends", agent=False)
def train():
    try:
        print("ready", flush=True)
        for step in range(1_000_000):
            sentinel.log({"loss": 1.0}, step=step)
    except KeyboardInterrupt:
        print("cleanup", flush=True)
        time.sleep(60)

train()
"""


@pytest.mark.fault("P7")
def test_a_second_interrupt_ends_the_cleanup_of_the_first(script, headers):
    with subprocess.Popen(
        script(INTERRUPTED), stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    ) as process:
        for expected in ("ready\n", "cleanup\n"):
            assert process.stdout.readline() == expected
            process.send_signal(signal.SIGINT)
        assert process.wait(240) == -signal.SIGINT
        assert process.stderr.read().rstrip().endswith("KeyboardInterrupt")

    assert headers()[0].outcome == "interrupted"


EXITS = """
import atexit, os, signal, sys, threading, time
import sentinel

kind, delay = sys.argv[1], float(sys.argv[2])
log = sentinel.log

class Late:
    def __del__(self):
        log({"late": 1.0}, step=5)

def forever():
    while True:
        log({"thread": 1.0}, step=6)

def train():
    if kind == "atexit":
        atexit.register(log, {"late": 1.0}, 7)
    if kind in ("thread", "inside"):
        threading.Thread(target=forever, daemon=True).start()
    end = time.monotonic() + delay
    while time.monotonic() < end:
        log({"loss": 1.0}, step=1)
    if kind == "raise":
        raise ValueError("bad")
    if kind == "exit":
        sys.exit(3)
    if kind == "_exit":
        os._exit(7)
    if kind == "SIGTERM":
        os.kill(os.getpid(), signal.SIGTERM)

late = Late()
if kind == "inside":
    entered = sentinel.monitor(agent=False).__enter__()
    train()
else:
    sentinel.monitor(agent=False)(train)()
"""
EXIT_KINDS = ("atexit", "thread", "inside", "raise", "exit", "_exit", "SIGTERM")


def ends(line, kind, delay):
    """Exit status and the last line of standard error."""
    done = subprocess.run(
        [*line, kind, str(delay)], timeout=240, check=False, capture_output=True, text=True
    )
    return done.returncode, done.stderr.splitlines()[-1:]


def check_exits(script, monkeypatch, kinds, seed):
    """Each exit has the status and the errors that it has without sentinel."""
    line, random_ = script(EXITS), random.Random(seed)
    monkeypatch.setenv("SENTINEL_OFF", "1")
    expected = {kind: ends(line, kind, 0.0) for kind in EXIT_KINDS}
    monkeypatch.setenv("SENTINEL_OFF", "0")
    found = [(kind, ends(line, kind, random_.random() * 0.02)) for kind in kinds]

    assert [pair for pair in found if pair[1] != expected[pair[0]]] == []


@pytest.mark.fault("P10")
def test_an_exit_is_that_of_a_program_without_sentinel(script, monkeypatch):
    check_exits(script, monkeypatch, EXIT_KINDS, seed=1)


@pytest.mark.full
@pytest.mark.fault("P10")
def test_two_hundred_exits_are_those_of_a_program_without_sentinel(script, monkeypatch):
    check_exits(script, monkeypatch, random.Random(2).choices(EXIT_KINDS, k=200), seed=2)


REUSED_PID = """
import os, subprocess, sys, time
from support.rank_processes import ranks
from sentinel.live.rings import STALE_AFTER_SECONDS, remove_stale_rings
from sentinel.transport.process import Process

with ranks() as start:
    rank = start(run="dead")
    rank.kill()
    rank.wait()
    while (other := subprocess.Popen(["sleep", "60"])).pid != rank.pid:
        other.kill()
        other.wait()
        with open("/proc/sys/kernel/ns_last_pid", "w") as file:
            file.write(str(rank.pid - 1))
    print(Process.from_pid(other.pid) is not None, end=" ")
    print(len(remove_stale_rings(time.time() + STALE_AFTER_SECONDS + 60.0)))
    other.kill()
    other.wait()
"""


@pytest.mark.full
@pytest.mark.fault("P13")
def test_the_ring_of_a_dead_rank_is_removed_although_its_pid_is_used_again(tmp_path, monkeypatch):
    monkeypatch.setenv("PYTHONPATH", os.pathsep.join([os.environ["PYTHONPATH"], "tests"]))
    monkeypatch.chdir(Path(__file__).parents[2])
    command = ["unshare", "--pid", "--fork", "--mount-proc", sys.executable, "-c", REUSED_PID]
    done = subprocess.run(command, timeout=240, check=False, capture_output=True, text=True)
    if done.returncode and "Operation not permitted" in done.stderr:
        pytest.skip("no namespace of process ids can be created here")

    assert (done.stdout, done.stderr) == ("True 1\n", "")
