"""Job and run id from the variables of Slurm."""

from __future__ import annotations

import subprocess
import sys

import psutil
import pytest

from sentinel.transport.process import Process
from sentinel.transport.run_id import derive_run_id
from sentinel.transport.slurm_job import SlurmJob, node_run_id, slurm_metadata, step_seed

STEP = {
    "SLURM_CLUSTER_NAME": "a100",
    "SLURM_JOB_ID": "7",
    "SLURM_STEP_ID": "0",
    "SLURM_NODEID": "1",
    "SLURM_LOCALID": "0",
}


def test_the_job_is_the_same_from_the_environment_and_from_the_metadata():
    environ = STEP | {"SLURM_RESTART_COUNT": "2", "SLURM_JOB_NODELIST": "gpu[1-2]"}
    metadata = slurm_metadata(environ | {"SLURM_ARRAY_TASK_ID": "3", "SLURM_JOB_ACCOUNT": "x"})

    assert metadata == {
        "slurm/job_id": "7",
        "slurm/array_task_id": "3",
        "slurm/cluster": "a100",
        "slurm/account": "x",
        "slurm/node_list": "gpu[1-2]",
        "slurm/restart_count": "2",
    }
    assert SlurmJob.of_metadata(metadata) == SlurmJob.of_environment(environ) == SlurmJob("7", 2)
    assert (SlurmJob.of_metadata({}), slurm_metadata({"SLURM_NNODES": "1"})) == (None, {})


@pytest.fixture
def task():
    """The task of a step: the child of a process with the name of Slurm's daemon."""
    child = "import sys; print('up', flush=True); sys.stdin.read()"
    script = f"import subprocess; subprocess.run([{sys.executable!r}, '-c', {child!r}])"
    with subprocess.Popen(
        ["slurmstepd: [7.0]", "-c", script],
        executable=sys.executable,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
    ) as daemon:
        daemon.stdout.readline()
        (child,) = psutil.Process(daemon.pid).children()
        yield Process.from_pid(child.pid)
        daemon.stdin.close()


def test_the_task_of_a_step_and_its_daemon_have_a_seed(task):
    assert step_seed(STEP, task) == ["a100", "7", "0", "1", "0"]
    assert step_seed(STEP, task.parent()) == ["a100", "7", "0", "1"]
    assert step_seed(STEP | {"SLURM_STEP_ID": "1"}, task) != step_seed(STEP, task)


def test_what_a_batch_script_starts_has_none(task):
    assert step_seed(STEP, Process.current()) == []
    assert step_seed({"SLURM_JOB_ID": "7"}, task) == []
    assert step_seed({}, task) == []


def test_a_run_outside_of_a_step_has_an_id_of_its_process():
    assert derive_run_id("x", STEP, is_alone=True) == derive_run_id("x", {}, is_alone=True)


def test_a_given_id_is_that_of_the_first_node():
    assert node_run_id("", STEP) == ""
    assert node_run_id("grpo", STEP) == "grpo.1"
    assert node_run_id("grpo", {}) == "grpo"
