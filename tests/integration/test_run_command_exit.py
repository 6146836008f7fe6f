"""`sentinel run`: exit statuses and signals of the command, and their incidents."""

from __future__ import annotations

import json
import os
import shlex
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress

import psutil
import pytest
from support.rank_processes import until
from support.run_command import TIMEOUT_SECONDS, TRAIN, incidents, run_arguments, run_to_end
from support.the_only import the_only

from sentinel.agent.process_tree import GRACE_SECONDS
from sentinel.transport.paths import home_dir

MAX_VARIABLE_BYTES = (128 << 10) - 1
"""Longest environment variable that Linux passes to a program, without the NUL at its end."""

pytestmark = pytest.mark.usefixtures("isolated_commands")


def test_the_exit_code_of_a_rank_is_returned_and_reported(script):
    done = run_to_end(*script(TRAIN + "sys.exit(3)"))

    assert done.returncode == 3
    assert incidents() == [("run_failed", "Rank 0 exited with code 3 at step 5.")]


def test_an_exit_code_that_no_rank_recorded_is_reported(script):
    done = run_to_end(*script(TRAIN + "raise SystemExit(4)"))

    assert done.returncode == 4
    found = the_only(incidents())
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


def test_a_command_that_ends_at_once_without_training_has_no_agent(tmp_path):
    done = run_to_end("true")

    assert (done.returncode, "no training found" in done.stderr) == (0, True)
    assert not (tmp_path / "home").exists()
    assert [*(tmp_path / "shm").iterdir()] == []


def test_a_command_that_runs_longer_has_an_agent_although_it_does_not_train(tmp_path):
    done = run_to_end("sleep", "1.8")

    assert done.returncode == 0
    until(lambda: [*(tmp_path / "home").glob("runs/*/summary.json")], 240.0, "the agent served it")


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


@pytest.mark.fault("P28")
def test_a_command_runs_although_nothing_can_be_added_to_its_environment(run_without_agent):
    paths = os.environ["PYTHONPATH"]
    paths += ":/" + "x" * (MAX_VARIABLE_BYTES - len(f"PYTHONPATH={paths}:/"))
    code = "import os; print(len(os.environ['PYTHONPATH']))"
    done = run_to_end(sys.executable, "-c", code, env=os.environ | {"PYTHONPATH": paths})

    assert (done.returncode, done.stdout) == (0, f"{len(paths)}\n")
    assert "The environment is too large" in done.stderr


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


def kill_launcher(command):
    """Kill `sentinel run`, and return the processes that it had."""
    processes = psutil.Process(command.pid).children(recursive=True)
    assert len(processes) > 1
    command.kill()
    return processes


def all_ended(processes):
    return not [each for each in processes if is_running(each)]


def is_running(process):
    with suppress(psutil.NoSuchProcess):
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    return False


@pytest.mark.fault("P14")
@pytest.mark.parametrize("is_wrapped", [False, True], ids=["command", "shell"])
def test_a_killed_launcher_leaves_no_process(script, run_without_agent, is_wrapped):
    """A shell ends at SIGTERM at once, and leaves its children."""
    line = script(WAITING.format(""))
    with started(["sh", "-c", f"{shlex.join(line)}; true"] if is_wrapped else line) as command:
        processes = kill_launcher(command)
        until(lambda: all_ended(processes), TIMEOUT_SECONDS, "its processes end")


@pytest.mark.chaos
@pytest.mark.full
@pytest.mark.fault("P14")
def test_a_command_that_ends_leaves_no_guard(script, run_without_agent):
    with started(script(WAITING.format(""))) as command:
        processes = psutil.Process(command.pid).children(recursive=True)
        command.send_signal(signal.SIGTERM)
        command.wait(TIMEOUT_SECONDS)
        until(lambda: all_ended(processes), TIMEOUT_SECONDS, "its processes end")


@pytest.mark.chaos
@pytest.mark.full
@pytest.mark.fault("P14")
@pytest.mark.parametrize("ignored", ["SIGTERM", "SIGHUP"])
def test_a_command_that_ignores_the_signal_is_killed_after_the_grace(
    script, run_without_agent, ignored
):
    """SIGTERM comes first: a command that handles it, such as by saving, has time for that."""
    line = script(WAITING.format(f"signal.signal(signal.{ignored}, signal.SIG_IGN)"))
    with started(line) as command:
        processes, killed_at = kill_launcher(command), time.monotonic()
        until(lambda: all_ended(processes), TIMEOUT_SECONDS, "its processes end")
        assert (time.monotonic() - killed_at >= GRACE_SECONDS) is (ignored == "SIGTERM")


TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", "2", "--standalone"]


@pytest.mark.chaos
@pytest.mark.full
@pytest.mark.fault("P14")
def test_a_killed_launcher_leaves_no_rank_of_torchrun_and_the_agent_reports_it(script, tmp_path):
    train = f"""{TRAIN}
from torch.utils.data import DataLoader
(pathlib := __import__("pathlib")).Path({str(tmp_path)!r}, f"at-{{rank}}").touch()
import time
while True:
    for _ in DataLoader(range(100), num_workers=1):
        net(torch.randn(8, 4)).pow(2).mean().backward()
        optimizer.step()
        time.sleep(0.05)
"""
    line = [*TORCHRUN, script(train)[1]]
    with subprocess.Popen(run_arguments("--", *line)) as command:
        until(lambda: len([*tmp_path.glob("at-*")]) == 2, TIMEOUT_SECONDS, "both ranks train")
        processes = [
            each
            for each in psutil.Process(command.pid).children(recursive=True)
            if "agent" not in each.cmdline()
        ]
        assert len(processes) >= 4
        command.kill()
        until(lambda: all_ended(processes), TIMEOUT_SECONDS, "its processes end")

    detector, summary = the_only(incidents())
    assert (detector, summary[:32]) == ("run_died", "Ranks 0-1 were ended by SIGTERM ")
