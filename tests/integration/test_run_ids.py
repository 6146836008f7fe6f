"""Run ids that are mistyped, or given to two runs at once."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from support.rank_processes import ranks, until

from sentinel.transport.launch_environment import identify
from sentinel.transport.paths import home_dir, run_dir, shared_run_dir

AGENT = [sys.executable, "-m", "sentinel", "agent", "--run"]


def test_a_mistyped_run_id_is_refused_with_the_nearest_ones():
    run_dir("train-llama-1")
    done = subprocess.run(
        [*AGENT, "trian-llama-1"], capture_output=True, text=True, timeout=240, check=False
    )

    assert done.returncode == 2
    assert "Did you mean 'train-llama-1'?" in done.stderr
    assert not shared_run_dir("trian-llama-1").exists()


def test_a_second_run_with_the_id_of_a_running_one_has_an_id_of_its_own(capsys):
    environ = {"SENTINEL_RUN_ID": "live"}
    with ranks() as start_rank:
        trainer = start_rank(world=1)
        other = identify(environ=environ)
        assert other.run.startswith("live-")
        assert f"run id live is in use by process {trainer.pid}" in capsys.readouterr().err
        assert identify(environ=environ).run == other.run

    again = identify(environ=environ)
    assert (again.run, again.attempt) == ("live", 1), "once it has ended, the next attempt"


@pytest.mark.parametrize(
    ("command", "has_agent"),
    [(["true"], False), ([sys.executable, "-c", "import time; time.sleep(3)"], True)],
)
def test_a_command_without_a_training_leaves_no_agent(command, has_agent):
    """A short one starts none."""
    environ = os.environ | {"SENTINEL_LINGER_SECONDS": "600"}
    subprocess.run(
        [sys.executable, "-m", "sentinel", "run", "--", *command], env=environ, check=True
    )

    def has_left():
        stored = list((home_dir() / "runs").glob("*/sentinel.db"))
        is_left = list(Path(os.environ["SENTINEL_RUNTIME_DIR"]).iterdir())
        return bool(stored) == has_agent and not is_left

    until(has_left, 240.0, "the agent exits")
