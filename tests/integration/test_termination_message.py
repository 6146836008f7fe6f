"""How a training ended is in the termination message of its Pod."""

from __future__ import annotations

import os
import signal
import subprocess
import sys

import pytest
from support.rank_processes import until
from support.run_command import TIMEOUT_SECONDS, TRAIN, incidents, run_arguments, run_to_end

from sentinel.agent.termination_message import MARK, STOPPED_TEXT, VARIABLE
from sentinel.transport.paths import is_agent_running, ring_dir

pytestmark = pytest.mark.usefixtures("isolated_commands")


@pytest.fixture
def message(tmp_path, monkeypatch):
    """The file, of which the kubelet makes an empty one for each container."""
    path = tmp_path / "termination-log"
    path.touch()
    monkeypatch.setenv(VARIABLE, str(path))
    return path


@pytest.mark.parametrize(
    ("end", "expected"),
    [
        ("raise ValueError('bad sample')", "Rank 0 raised ValueError at step 5"),
        ("os.kill(os.getpid(), 9)", "Rank 0 was killed by SIGKILL at step 5"),
    ],
)
def test_a_failure_is_the_message(script, message, end, expected):
    done = run_to_end(*script(TRAIN + end))

    assert done.returncode != 0
    ((_, summary),) = incidents()
    assert summary.startswith(expected)
    assert message.read_text() == f"{MARK}{summary}\n"


def test_a_failure_before_any_rank_started_is_the_message(script, message):
    run_to_end(*script("import torch\nimport no_such_module"))

    incidents()
    assert message.read_text() == f"{MARK}The command exited with code 1 before any rank started.\n"


def test_a_training_that_finishes_leaves_no_message(script, message):
    assert run_to_end(*script(TRAIN)).returncode == 0

    assert incidents() == []
    assert message.read_text() == ""


def test_a_training_that_its_launcher_restarts_leaves_no_message(script, message, tmp_path):
    """A failure is the message only until training continues."""
    once = f"""
if not os.path.exists("{tmp_path}/failed"):
    open("{tmp_path}/failed", "w").close()
    raise ValueError("bad sample")
"""
    program = script(TRAIN + once)
    retry = f"{' '.join(program)} || {' '.join(program)}"

    assert run_to_end("sh", "-c", retry).returncode == 0
    assert message.read_text() == ""


def test_the_message_of_the_training_itself_stays(script, message):
    run_to_end(*script(TRAIN + f"open({str(message)!r}, 'w').write('theirs')\nsys.exit(3)"))

    incidents()
    assert message.read_text() == "theirs"


def test_a_stop_from_outside_is_distinguished_from_a_kill(script, message, tmp_path):
    """The kubelet signals the first process of a container only."""
    endless = TRAIN + f"open('{tmp_path}/trained', 'w').close()\ntime.sleep(600)"
    training = subprocess.Popen(run_arguments("--", *script(endless)))
    try:
        until((tmp_path / "trained").exists, TIMEOUT_SECONDS, "it trains")
        training.send_signal(signal.SIGTERM)
        assert training.wait(TIMEOUT_SECONDS) == 128 + signal.SIGTERM
    finally:
        training.kill()
        training.wait()

    incidents()
    text = message.read_text()
    assert text.startswith(f"{MARK}Rank 0 was ended by SIGTERM at step 5. {STOPPED_TEXT}")


def test_without_the_agent_the_exit_is_the_message(script, message, tmp_path):
    """An invalid settings file: the agent does not run."""
    settings = tmp_path / "broken.toml"
    settings.write_text("port = ")
    command = run_arguments("--config", str(settings), "--", *script(TRAIN + "sys.exit(3)"))
    done = subprocess.run(command, timeout=TIMEOUT_SECONDS, check=False)

    assert done.returncode == 3
    assert message.read_text() == f"{MARK}The command exited with code 3.\n"


def test_an_agent_of_another_container_passes_the_failure_on(script, message, tmp_path):
    own = tmp_path / "agent-termination-log"
    environ = os.environ | {"SENTINEL_RUN_ID": "grpo-7b", "SENTINEL_LINGER_SECONDS": "600"}
    command = [sys.executable, "-m", "sentinel", "agent", "--run", "grpo-7b"]
    agent = subprocess.Popen(command, env=environ | {VARIABLE: str(own)})
    try:
        until(lambda: is_agent_running(ring_dir("grpo-7b")), TIMEOUT_SECONDS, "the agent runs")
        done = run_to_end(*script(TRAIN + "raise ValueError('bad sample')"), env=environ)
        assert done.returncode == 1
        assert message.read_text().startswith(f"{MARK}Rank 0 raised ValueError at step 5")
        assert own.read_text() == message.read_text()
    finally:
        agent.terminate()
        assert agent.wait(TIMEOUT_SECONDS) == 0
