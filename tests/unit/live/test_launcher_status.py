"""Launched: a launcher has the last word, however soon it leaves after it."""

from __future__ import annotations

import subprocess
import sys
from dataclasses import replace

import pytest

from sentinel.live.launcher_status import LauncherStatus
from sentinel.transport.launch_status import LaunchStatus
from sentinel.transport.process import Process

RUN = "launched"


@pytest.fixture
def launcher():
    """A process that is there, and that ends when it is told to."""
    waits = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", waits], stdin=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


def leave(launcher):
    launcher.stdin.close()
    launcher.wait(60.0)


def test_a_launcher_that_left_is_read_once_more_before_it_is_believed_to_have_said_nothing(
    launcher,
):
    """Else an agent that lingers for no time leaves before it knows how the command ended."""
    launch = LaunchStatus(RUN, Process.from_pid(launcher.pid), "train", 1.0)
    launch.write()
    launched = LauncherStatus(RUN)
    launched.poll()
    assert launched.running

    replace(launch, ended_at=2.0, exit_code=137).write()
    leave(launcher)
    assert launched.running, "what it wrote is not read yet"
    launched.poll()

    assert not launched.running
    assert launched.launch.exit_code == 137


def test_a_launcher_that_was_killed_says_no_more(launcher):
    launch = LaunchStatus(RUN, Process.from_pid(launcher.pid), "train", 1.0)
    launch.write()
    launched = LauncherStatus(RUN)
    launched.poll()
    leave(launcher)
    launched.poll()

    assert not launched.running


def test_a_run_without_a_launcher_is_not_under_way():
    launched = LauncherStatus(RUN)
    launched.poll()

    assert not launched.running
