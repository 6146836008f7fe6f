"""Children of a monitored process: they inherit nothing of it and do nothing in its run."""

from __future__ import annotations

import subprocess

import pytest

from sentinel.model.record import Event

PROGRAM = """
import multiprocessing, os, subprocess, sys

import sentinel
from sentinel.client.session import current_session

LIST = (
    "import os; folder = '/proc/self/fd'; "
    "print([os.path.realpath(f'{folder}/{n}') for n in os.listdir(folder)])"
)

def in_child():
    # A spawned child imports this program anew, a forked one has its parent's memory.
    sentinel.log({"x": 2.0}, step=2)
    sentinel.mark("save")
    with sentinel.phase("child"):
        pass
    maps = open("/proc/self/maps").read()
    os._exit(current_session() is not None or ".ring" in maps)

@sentinel.monitor(run="children", strict=True)
def train():
    sentinel.log({"x": 1.0}, step=1)
    for method in ("fork", "spawn", "forkserver"):
        child = multiprocessing.get_context(method).Process(target=in_child)
        child.start()
        child.join()
        assert child.exitcode == 0, method
    forked = os.fork()
    if not forked:
        in_child()
    assert os.waitpid(forked, 0)[1] == 0
    spawned = os.posix_spawn(sys.executable, [sys.executable, "-S", "-c", LIST], os.environ)
    assert os.waitpid(spawned, 0)[1] == 0
    subprocess.run([sys.executable, "-S", "-c", LIST], close_fds=False, check=True)
    os.system(f"{sys.executable} -S -c \\"{LIST}\\"")
    sentinel.log({"x": 3.0}, step=3)

if __name__ == "__main__":
    train()
"""


@pytest.mark.fault("I6")
def test_children_inherit_no_file_of_the_run_and_record_nothing(
    script, recorded, run_without_agent
):
    done = subprocess.run(
        script(PROGRAM),
        check=False,
        capture_output=True,
        stdin=subprocess.DEVNULL,
        text=True,
        timeout=240,
    )
    assert (done.returncode, done.stderr) == (0, "")
    lists = done.stdout.splitlines()
    assert len(lists) == 3
    for files in lists:
        assert not any(
            word in files for word in (".ring", "sentinel", "socket:", run_without_agent)
        )
    (records,) = recorded().values()
    steps = [(r.step, r.values["x"]) for r in records if r.event is Event.STEP]
    assert steps == [(1, 1.0), (3, 3.0)]
    assert not any(r.event in (Event.SAVE, Event.PHASE) for r in records)
