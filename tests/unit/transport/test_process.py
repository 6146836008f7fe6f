"""What /proc shows of processes."""

from __future__ import annotations

import errno
import os
import subprocess
import sys

import pytest
from support.rank_processes import until

from sentinel.transport import process as process_module
from sentinel.transport.process import Process, ends_job, is_killed

TIMEOUT_SECONDS = 240.0
KILLED = "State:\tD (disk sleep)\nSigPnd:\t0000000000000100\nShdPnd:\t0000000000000100\n"


@pytest.fixture
def child():
    """A process that runs until it is killed, and is waited for at the end."""
    with subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE) as started:
        yield started
        started.kill()


def test_a_process_that_runs_is_not_killed(child):
    assert not is_killed(child.pid)


def test_a_process_is_killed_before_it_is_waited_for(child):
    child.kill()
    until(lambda: is_killed(child.pid), TIMEOUT_SECONDS, "the end")
    child.wait()
    assert not is_killed(child.pid)


@pytest.mark.fault("A28")
@pytest.mark.parametrize(
    ("status", "is_ending"),
    [
        (KILLED, True),
        # A signal of the whole process goes to any of its threads.
        (KILLED.replace("SigPnd:\t0000000000000100", "SigPnd:\t0000000000000000"), False),
        (KILLED.replace("0000000000000100", "0000000000004000"), False),
        ("State:\tZ (zombie)\nSigPnd:\t0000000000000000\n", True),
        ("", False),
    ],
)
def test_a_thread_with_a_pending_kill_runs_no_code_again(status, is_ending):
    assert process_module._is_ending(status) == is_ending


def test_nothing_raises_where_no_file_can_be_opened(child, monkeypatch):
    def refuse(*_):
        raise OSError(errno.EMFILE, "Too many open files")

    monkeypatch.setattr(process_module, "_stat_fields", refuse)
    assert not is_killed(child.pid)
    assert process_module._grandparent_pid() == 0


def test_the_grandparent_is_found():
    parent = Process.from_pid(os.getppid()).parent()
    assert process_module._grandparent_pid() == (parent.pid if parent else 0)


@pytest.mark.parametrize("variable", ["SLURM_JOB_ID", "PBS_JOBID", "LSB_JOBID", "_CONDOR_SLOT"])
def test_a_notebook_in_a_job_does_not_end_it(monkeypatch, variable):
    monkeypatch.setattr(os, "isatty", lambda _: False)
    monkeypatch.setenv(variable, "7")
    assert ends_job()
    monkeypatch.setenv("JPY_PARENT_PID", "12")
    assert not ends_job()
