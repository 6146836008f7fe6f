"""The status of a launcher is read even if it exits right after writing it."""

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
    """A process that runs until its stdin is closed."""
    script = "import sys; sys.stdin.read()"
    with subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE) as process:
        yield process
        process.stdin.close()


def leave(launcher):
    launcher.stdin.close()
    launcher.wait(60.0)


def test_the_status_is_read_once_more_after_the_launcher_exited(
    launcher,
):
    """Otherwise an agent without linger time would exit before it knows the exit status."""
    launch = LaunchStatus(RUN, Process.from_pid(launcher.pid), "train", 1.0)
    launch.write()
    status = LauncherStatus(RUN)
    status.poll()
    assert status.running

    replace(launch, ended_at=2.0, exit_code=137).write()
    leave(launcher)
    assert status.running, "what it wrote is not read yet"
    status.poll()

    assert not status.running
    assert status.launch.exit_code == 137


def test_a_killed_launcher_ends_the_command(launcher):
    launch = LaunchStatus(RUN, Process.from_pid(launcher.pid), "train", 1.0)
    launch.write()
    status = LauncherStatus(RUN)
    status.poll()
    leave(launcher)
    status.poll()

    assert not status.running


def test_without_a_launcher_no_command_is_running():
    status = LauncherStatus(RUN)
    status.poll()

    assert not status.running
