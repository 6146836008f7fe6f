"""The file with the termination message of a container."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from sentinel.agent.termination_message import (
    MARK,
    STOPPED_TEXT,
    VARIABLE,
    exit_text,
    termination_log,
    write_message,
)
from sentinel.transport.launch_status import LaunchStatus
from sentinel.transport.process import Process


@pytest.mark.parametrize(
    ("environ", "path"),
    [
        ({}, None),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1"}, Path("/dev/termination-log")),
        ({"KUBERNETES_SERVICE_HOST": "10.0.0.1", VARIABLE: ""}, None),
        ({VARIABLE: "/x"}, Path("/x")),
    ],
)
def test_there_is_a_file_inside_kubernetes_only(environ, path):
    assert termination_log(environ) == path


@pytest.mark.parametrize(
    ("code", "stop_signal", "text"),
    [
        (0, "", ""),
        (0, "SIGTERM", ""),
        (130, "", ""),
        (3, "", "The command exited with code 3."),
        (137, "", "The command was killed by SIGKILL."),
        (143, "SIGTERM", f"The command was ended by SIGTERM. {STOPPED_TEXT}"),
    ],
)
def test_the_exit_of_a_command_is_one_of_a_failure_or_a_stop(code, stop_signal, text):
    launch = LaunchStatus("run", Process.current(), "python", 1.0)
    if stop_signal:
        launch = launch.with_stop_signal(stop_signal, 2.0)

    assert exit_text(launch.with_exit(code, 3.0)) == text
    assert not exit_text(launch)


def test_a_message_is_replaced_by_that_of_the_agent_only(tmp_path):
    path = tmp_path / "log"
    write_message(path, "first", replaces=False)
    write_message(path, "second", replaces=False)
    assert path.read_text() == f"{MARK}first\n"
    write_message(path, "3rd")
    assert path.read_text() == f"{MARK}3rd\n"
    write_message(path, "")
    assert path.read_text() == ""


@pytest.mark.parametrize("text", ["theirs", "s"])
def test_the_message_of_another_program_stays(tmp_path, text):
    path = tmp_path / "log"
    path.write_text(text)
    write_message(path, "ours")
    write_message(path, "")

    assert path.read_text() == text


def test_a_file_that_cannot_be_written_raises_nothing(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, tmp_path, tmp_path / "none" / "log"):
        write_message(path, "ours")


def test_a_long_message_is_cut(tmp_path):
    write_message(tmp_path / "log", "x" * 10_000)

    assert (tmp_path / "log").stat().st_size == 2048
