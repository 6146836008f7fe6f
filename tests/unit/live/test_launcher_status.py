"""The status of a launcher is read even if it exits right after writing it."""

from __future__ import annotations

import subprocess
import sys
from types import SimpleNamespace

import pytest

from sentinel.live.launcher_status import LauncherStatus
from sentinel.live.rank import LiveRank
from sentinel.model.record import WHOLE_RUN, Event
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
    launcher.wait(240)


def test_the_status_is_read_once_more_after_the_launcher_exited(
    launcher,
):
    """Otherwise an agent without linger time would exit before it knows the exit status."""
    launch = LaunchStatus(RUN, Process.from_pid(launcher.pid), "train", 1.0)
    launch.write()
    status = LauncherStatus(RUN)
    status.poll()
    assert status.running

    launch.with_exit(137, 2.0).write()
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


def launch_that_exited(exit_code):
    """The status of a command that exited, of a launcher that is gone."""
    launch = LaunchStatus(RUN, Process(1, 1), "train", 10.0, 20.0, exit_code)
    launch.write()
    status = LauncherStatus(RUN)
    status.poll()
    return status


def rank_started_at(rank, created_at):
    header = SimpleNamespace(identity=SimpleNamespace(rank=rank), created_at=created_at)
    return LiveRank(None, None, None, header, last_progress_at=created_at)


def test_the_exit_status_is_a_record_of_the_whole_run():
    """Any rank number would be that of a rank which never ends, of another node at worst."""
    ranks = [rank_started_at(2, 11.0), rank_started_at(3, 11.0)]
    status = launch_that_exited(0)
    (record,) = status.end_records(ranks, attempt=0, now=21.0)

    assert (record.rank, record.event) == (WHOLE_RUN, Event.METADATA)
    assert record.attributes == {"exit_code": "0"}
    assert [*status.end_records(ranks, attempt=0, now=22.0)] == []


@pytest.mark.parametrize(("earlier", "lowest"), [((), 0), ((3, 2), 2)])
def test_a_failure_before_any_rank_started_is_one_of_the_lowest_rank_of_the_node(earlier, lowest):
    ranks = [rank_started_at(rank, 5.0) for rank in earlier]
    status = launch_that_exited(1)
    start, stop = status.end_records(ranks, attempt=1, now=21.0)

    assert (start.rank, start.event) == (lowest, Event.START)
    assert (stop.rank, stop.event, stop.attributes["outcome"]) == (lowest, Event.STOP, "exit")
