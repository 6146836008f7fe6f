"""What Slurm answers about the job of a rank that was killed is in the notification.

The answers are recorded, of Slurm 22.05; `tests/stack/test_slurm.py` has those of a real one.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from pathlib import Path

import pytest
from support.decorated_ranks import jobs as decorated_jobs

from sentinel.live.job_state import ANSWER_SECONDS

pytestmark = pytest.mark.timeout(600)

ANSWER = (
    "JobId=7 JobName=grpo UserId=ana(1000) Account=research QOS=normal JobState={state} "
    "Reason={reason} Dependency=(null) Requeue=0 Restarts=0 BatchFlag=1 Reboot=0 "
    "ExitCode={exit_code} TimeLimit=1-00:00:00 PreemptTime=None Partition=gpu NodeList=gpu-a"
)
OUT_OF_MEMORY = ANSWER.format(state="OUT_OF_MEMORY", reason="OutOfMemory", exit_code="0:125")
RUNNING = ANSWER.format(state="RUNNING", reason="None", exit_code="0:0")
TRAIN = """
import os, signal
import sentinel

@sentinel.monitor
def train():
    for step in range(20):
        sentinel.log({{"loss": 1.0 + 0.99**step}}, step=step)
    {end}

train()
"""
KILLED = TRAIN.format(end="os.kill(os.getpid(), signal.SIGKILL)")
HEALTHY = TRAIN.format(end="pass")


@pytest.fixture
def train(tmp_path) -> Iterator:
    """Trains in a job whose `scontrol` is this shell script; returns the alerts."""
    with decorated_jobs(tmp_path) as start:

        def run(script: str, scontrol: str) -> list[tuple[str, str, str]]:
            programs = _programs(tmp_path / "bin", scontrol)
            environ = {"SLURM_JOB_ID": "7", "PATH": f"{programs}:{os.environ['PATH']}"}
            job = start("job", script, environ=environ)
            job.wait()
            return job.alerts()

        yield run


def _programs(folder: Path, scontrol: str) -> Path:
    folder.mkdir()
    (folder / "scontrol").write_text(f"#!/bin/sh\n{scontrol}\n")
    (folder / "scontrol").chmod(0o700)
    return folder


@pytest.mark.fault("P31")
def test_memory_of_the_job_that_ran_out_is_named(train):
    ((detector, severity, summary),) = train(KILLED, f"echo '{OUT_OF_MEMORY}'")

    assert (detector, severity) == ("run_died", "critical")
    assert summary.endswith("Slurm job 7 ran out of memory (OUT_OF_MEMORY).")


def test_a_call_that_the_end_of_the_job_kills_is_repeated(train):
    once = '[ -e "$0.once" ] || { touch "$0.once"; kill -TERM $$; }'
    ((_, _, summary),) = train(KILLED, f"{once}; echo '{OUT_OF_MEMORY}'")

    assert summary.endswith("(OUT_OF_MEMORY).")


@pytest.mark.fault("P31")
@pytest.mark.parametrize(
    "scontrol",
    [
        f"echo '{RUNNING}'",
        "echo 'slurm_load_jobs error: Invalid job id specified' >&2; exit 1",
        "trap '' TERM; while true; do sleep 0.1; done",
    ],
    ids=["the job runs", "the job is unknown", "slurm hangs"],
)
def test_a_death_is_notified_whatever_slurm_answers(train, scontrol):
    ((detector, severity, summary),) = train(KILLED, scontrol)

    assert (detector, severity) == ("run_died", "critical")
    assert "Slurm" not in summary
    assert ANSWER_SECONDS < 5.0


def test_a_healthy_run_asks_nothing(train, tmp_path):
    assert train(HEALTHY, f"touch {tmp_path}/asked; echo '{OUT_OF_MEMORY}'") == []
    assert not (tmp_path / "asked").exists()
