"""`sentinel run`: the end of a command is its own, and whoever must know of it is told."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import contextmanager

import pytest
from support.rank_processes import until
from support.run_command import PATIENCE, TRAIN, incidents, launched, words

from sentinel.transport.paths import home_dir
from sentinel.transport.process import Process

pytestmark = pytest.mark.usefixtures("isolated_commands")


def test_the_exit_code_is_the_commands_and_is_paged_with_the_rank(script):
    done = launched(*script(TRAIN + "sys.exit(3)"))

    assert done.returncode == 3
    assert incidents() == [("run_failed", "Rank 0 left with exit code 3 at step 5.")]


def test_an_exit_that_no_rank_told_of_is_paged(script):
    done = launched(*script(TRAIN + "raise SystemExit(4)"))

    assert done.returncode == 4
    (found,) = incidents()
    assert found == ("run_failed", "The command left with exit code 4 after every rank had ended.")


def test_a_rank_that_was_killed_is_paged_with_the_signal(script):
    done = launched(*script(TRAIN + "os.kill(os.getpid(), 9)"))

    assert done.returncode == 128 + 9
    assert incidents() == [
        ("run_died", "Rank 0 was killed by SIGKILL at step 5 without a word; none is left.")
    ]


def test_a_command_that_fails_before_any_rank_began_is_paged(script):
    done = launched(*script("import torch\nimport no_such_module"))

    assert done.returncode == 1
    assert "ModuleNotFoundError" in done.stderr
    assert incidents() == [
        ("run_failed", "The command left with exit code 1 before any rank began.")
    ]
    (outcome,) = (home_dir() / "runs").glob("*/outcome.json")
    assert json.loads(outcome.read_text())["exit_code"] == "1"


def test_a_command_that_does_not_exist_is_said_and_nothing_is_begun(tmp_path):
    done = launched("no-such-command", "--flag")

    assert (done.returncode, done.stdout) == (127, "")
    assert done.stderr.startswith("sentinel run: no-such-command: command not found")
    assert not (tmp_path / "home").exists()


def test_a_file_that_is_no_program_is_said(tmp_path, run_without_agent):
    (tmp_path / "data").write_text("no program")
    done = launched("./data")

    assert done.returncode == 126
    assert "./data" in done.stderr


def test_a_settings_file_that_is_not_there_is_refused():
    command = words("--config", "nowhere.toml", "--", "true")
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)

    assert (done.returncode, "nowhere.toml" in done.stderr) == (2, True)


WAITING = """
import os, signal, sys, time
# No print: the signal may come in the midst of one.
signal.signal(signal.SIGUSR1, lambda *_: os.write(1, b"heard\\n"))
{}
print("ready", flush=True)
deadline = time.monotonic() + 120
while time.monotonic() < deadline:
    time.sleep(0.1)
"""


@contextmanager
def begun(line):
    with subprocess.Popen(words("--", *line), stdout=subprocess.PIPE, text=True) as command:
        try:
            assert command.stdout.readline() == "ready\n"
            yield command
        finally:
            command.kill()


@pytest.mark.parametrize(("number", "status"), [(signal.SIGTERM, 128 + 15), (signal.SIGINT, 130)])
def test_signals_are_passed_on_and_end_it_as_they_would(script, run_without_agent, number, status):
    line = script(WAITING.format("signal.signal(signal.SIGINT, signal.SIG_DFL)"))
    with begun(line) as command:
        command.send_signal(signal.SIGUSR1)
        assert command.stdout.readline() == "heard\n"
        command.send_signal(number)

        assert command.wait(PATIENCE) == status


def test_an_interrupt_from_the_terminal_reaches_the_command_once(script, run_without_agent):
    """A terminal of its own, whose interrupt key is pressed."""
    import pty

    said = script("""
import signal, sys, time
heard = []
signal.signal(signal.SIGINT, lambda *_: heard.append(1))
print("ready", sys.stdin.isatty(), flush=True)
while not heard:
    time.sleep(0.05)
time.sleep(1.5)
print("heard", len(heard), "in all", flush=True)
""")
    child, terminal = pty.fork()
    if child == 0:
        os.execv(sys.executable, words("--", *said))
    text = b""
    while b"ready True" not in text:
        text += os.read(terminal, 1024)
    os.write(terminal, b"\x03")
    while b"in all" not in text:
        text += os.read(terminal, 1024)
    _, status = os.waitpid(child, 0)
    os.close(terminal)

    assert b"heard 1 in all" in text
    assert os.waitstatus_to_exitcode(status) == 0


def test_an_interrupted_run_wakes_nobody(script):
    quiet = TRAIN.replace("sys.stdout.write", "0 and ")
    with begun(script(quiet + WAITING.format(""))) as command:
        command.send_signal(signal.SIGINT)
        status = command.wait(PATIENCE)

    # By KeyboardInterrupt a Python ends itself with the signal.
    assert status == 128 + 2
    assert incidents() == []


def test_a_killed_launcher_takes_its_command_along(script, run_without_agent):
    say = 'import os; print("ready", os.getpid(), sep="\\n", flush=True)\n'
    with begun(script(say + WAITING.format("").replace('print("ready"', 'print("so"'))) as command:
        pid = int(command.stdout.readline())
        command.kill()

    until(lambda: not alive(pid), 60.0, "the command ends")


def alive(pid):
    found = Process.from_pid(pid)
    return found is not None and found.is_alive()
