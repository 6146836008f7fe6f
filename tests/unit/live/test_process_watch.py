"""The end of a process is noticed at once, with its status where that is known."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time

import pytest

from sentinel.live import process_watch
from sentinel.live.process_watch import ProcessEnd, ProcessWatch
from sentinel.transport.process import Process

ENDINGS = {
    "killed": ("os.kill(os.getpid(), 9)", {"signal": "SIGKILL"}),
    "terminated": ("os.kill(os.getpid(), 15)", {"signal": "SIGTERM"}),
    "exit": ("os._exit(3)", {"code": "3"}),
    "returned": ("", {"code": "0"}),
}


def started(ending=""):
    line = f"import os, sys; sys.stdin.read(); {ending}"
    return subprocess.Popen([sys.executable, "-c", line], stdin=subprocess.PIPE)


@pytest.fixture
def watch():
    watch = ProcessWatch(time.time)
    yield watch
    watch.close()


@pytest.mark.parametrize("reaped", [False, True])
@pytest.mark.parametrize(("ending", "expected"), ENDINGS.values(), ids=ENDINGS)
def test_the_status_of_a_process_is_known(watch, ending, expected, reaped):
    with started(ending) as child:
        process = Process.from_pid(child.pid)
        watch.add(process)
        watch.update(thorough=True)
        assert watch.ends == {}
        child.stdin.close()
        if reaped:
            child.wait(240)
        watch.wait(240)
        watch.update(thorough=False)
        end = watch.ends[process]

    if end.status is None:
        assert reaped
        pytest.skip("this kernel forgets the status of a process that its parent has waited for")
    assert end.attributes == expected


@pytest.mark.parametrize("has_pidfd", [False, True])
def test_a_process_that_ended_before_has_no_known_time(watch, monkeypatch, has_pidfd):
    if not has_pidfd:
        monkeypatch.delattr(os, "pidfd_open")
    with started() as child:
        process = Process.from_pid(child.pid)
        child.kill()
        child.wait(240)
    watch.add(process)

    assert watch.ends == {process: ProcessEnd(0.0)}


def test_without_pidfds_processes_are_polled(watch, monkeypatch):
    monkeypatch.delattr(os, "pidfd_open")
    with started() as child:
        process = Process.from_pid(child.pid)
        watch.add(process)
        watch.update(thorough=True)
        assert watch.ends == {}
        child.send_signal(signal.SIGKILL)
        os.waitid(os.P_PID, child.pid, os.WEXITED | os.WNOWAIT)
        watch.update(thorough=True)

    assert watch.ends[process].attributes == {"signal": "SIGKILL"}


def test_a_process_that_exits_slowly_counts_as_gone_after_a_while(watch, monkeypatch):
    """As one that releases a GPU, whose connections are closed already."""
    now = 100.0
    watch.clock = lambda: now
    with started() as child:
        process = Process.from_pid(child.pid)
        watch.add(process)
        monkeypatch.setattr(Process, "is_exiting", lambda _: True)
        watch.update(thorough=True)
        assert (watch.ends, watch.has_exiting()) == ({}, True)
        now += process_watch.EXIT_SECONDS
        watch.update(thorough=True)
        child.kill()

    assert watch.ends[process].ended_at == 100.0
    assert not watch.has_exiting()


def test_a_pid_that_is_used_again_is_another_process(watch):
    with started() as child:
        other = Process(child.pid, 1)
        watch.add(other)
        child.kill()

    assert watch.ends == {other: ProcessEnd(0.0)}
