"""`sentinel run`: exit statuses and signals of the command, and their incidents."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from support.rank_processes import until
from support.run_command import TIMEOUT_SECONDS, TRAIN, incidents, run_arguments, run_to_end

from sentinel.transport.paths import home_dir
from sentinel.transport.process import Process

pytestmark = pytest.mark.usefixtures("isolated_commands")


def test_the_exit_code_of_a_rank_is_returned_and_reported(script):
    done = run_to_end(*script(TRAIN + "sys.exit(3)"))

    assert done.returncode == 3
    assert incidents() == [("run_failed", "Rank 0 exited with code 3 at step 5.")]


def test_an_exit_code_that_no_rank_recorded_is_reported(script):
    done = run_to_end(*script(TRAIN + "raise SystemExit(4)"))

    assert done.returncode == 4
    (found,) = incidents()
    assert found == ("run_failed", "The command exited with code 4 after every rank had ended.")


def test_a_killed_rank_is_reported_with_the_signal(script):
    done = run_to_end(*script(TRAIN + "os.kill(os.getpid(), 9)"))

    assert done.returncode == 128 + 9
    assert incidents() == [
        (
            "run_died",
            "Rank 0 was killed by SIGKILL at step 5; no rank is left.",
        )
    ]


def test_a_failure_before_any_rank_started_is_reported(script):
    done = run_to_end(*script("import torch\nimport no_such_module"))

    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
    assert incidents() == [
        ("run_failed", "The command exited with code 1 before any rank started.")
    ]
    (outcome,) = (home_dir() / "runs").glob("*/outcome.json")
    assert json.loads(outcome.read_text())["exit_code"] == "1"


def test_a_command_that_fails_at_once_has_the_name_it_was_given(script):
    """The next run of that name closes the case of its failure."""
    command = run_arguments("--run", "Llama 3", "--", *script("import torch\nraise SystemExit(3)"))
    subprocess.run(command, timeout=TIMEOUT_SECONDS, check=False)

    assert [detector for detector, _ in incidents()] == ["run_failed"]
    (summary,) = (home_dir() / "runs").glob("llama-3-*/summary.json")
    assert json.loads(summary.read_text())["name"] == "Llama 3"


def test_an_unknown_command_is_an_error_and_starts_nothing(tmp_path):
    done = run_to_end("no-such-command", "--flag")

    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.startswith("sentinel run: no-such-command: command not found")
    assert not (tmp_path / "home").exists()


def test_a_file_that_is_not_executable_is_an_error(tmp_path, run_without_agent):
    (tmp_path / "data").write_text("no program")
    done = run_to_end("./data")

    assert done.returncode == 126
    assert "./data" in done.stderr


def test_a_missing_settings_file_is_an_error():
    command = run_arguments("--config", "nowhere.toml", "--", "true")
    done = subprocess.run(command, capture_output=True, text=True, timeout=240, check=False)

    assert (done.returncode, "nowhere.toml" in done.stderr) == (2, True)


WAITING = """
import os, signal, sys, time
# No print: the signal may arrive during one.
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"received\\n"))
{}
print("ready", flush=True)
deadline = time.monotonic() + 120
while time.monotonic() < deadline:
    time.sleep(0.1)
"""


@contextmanager
def started(line):
    with subprocess.Popen(run_arguments("--", *line), stdout=subprocess.PIPE, text=True) as command:
        try:
            assert command.stdout.readline() == "ready\n"
            yield command
        finally:
            command.kill()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + 15), (signal.SIGINT, 130)])
def test_signals_are_forwarded_and_end_the_command(script, run_without_agent, number, status):
    line = script(WAITING.format("signal.signal(signal.SIGINT, signal.SIG_DFL)"))
    with started(line) as command:
        command.send_signal(signal.SIGUSR1)
        assert command.stdout.readline() == "received\n"
        command.send_signal(number)

        assert command.wait(TIMEOUT_SECONDS) == status


@pytest.mark.fault("P7")
def test_an_interrupt_from_the_terminal_reaches_the_command_once(script, run_without_agent):
    """In a new terminal, Ctrl-C is pressed."""
    import pty

    command = script("""
import signal, sys, time
received = []
signal.signal(signal.SIGINT, lambda *_: received.append(1))
print("ready", sys.stdin.isatty(), flush=True)
while not received:
    time.sleep(0.05)
time.sleep(1.5)
print("received", len(received), "in all", flush=True)
""")
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, run_arguments("--", *command))
    text = b""
    while b"ready True" not in text:
        text += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    while b"in all" not in text:
        text += os.read(terminal, 1024)
    _, status = os.waitpid(child, 0)
    os.close(terminal)

    assert b"received 1 in all" in text
    assert os.waitstatus_to_exitcode(status) == 0


@pytest.mark.fault("P7")
def test_an_interrupted_run_has_no_incident(script):
    silent_train = TRAIN.replace("sys.stdout.write", "0 and ")
    with started(script(silent_train + WAITING.format(""))) as command:
        command.send_signal(signal.SIGINT)
        status = command.wait(TIMEOUT_SECONDS)

    # After KeyboardInterrupt Python ends itself with the signal.
    assert status == 128 + 2
    assert incidents() == []


def test_a_killed_launcher_kills_its_command(script, run_without_agent):
    print_pid = 'import os; print("ready", os.getpid(), sep="\\n", flush=True)\n'
    with started(
        script(print_pid + WAITING.format("").replace('print("ready"', 'print("started"'))
    ) as command:
        pid = int(command.stdout.readline())
        command.kill()

    until(lambda: not is_alive(pid), 240.0, "the command ends")


def is_alive(pid):
    process = Process.from_pid(pid)
    return process is not None and process.is_alive()
