"""The Slurm job of a process, from the environment that Slurm sets."""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from sentinel.transport.process import Process, read_arguments

SLURM_KEY_PREFIX = "slurm/"
"""Prefix of the metadata that describe the job of a run."""
_VARIABLES = {
    "job_id": ("SLURM_JOB_ID",),
    "job_name": ("SLURM_JOB_NAME",),
    "array_job_id": ("SLURM_ARRAY_JOB_ID",),
    "array_task_id": ("SLURM_ARRAY_TASK_ID",),
    "cluster": ("SLURM_CLUSTER_NAME",),
    "account": ("SLURM_JOB_ACCOUNT",),
    "partition": ("SLURM_JOB_PARTITION",),
    "qos": ("SLURM_JOB_QOS",),
    "node_list": ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST"),
}


class SlurmJob(NamedTuple):
    """A job by its id; `restart_count` is how often it had been requeued when it was started."""

    job_id: str
    restart_count: int = 0

    @staticmethod
    def of_environment(environ: Mapping[str, str]) -> SlurmJob | None:
        """The job of a process with that environment; None outside Slurm."""
        job_id = environ.get("SLURM_JOB_ID", "")
        return SlurmJob(job_id, _number(environ.get("SLURM_RESTART_COUNT", ""))) if job_id else None

    @staticmethod
    def of_metadata(metadata: Mapping[str, object]) -> SlurmJob | None:
        """The job of a run with these metadata; None if they name none."""
        job_id = str(metadata.get(f"{SLURM_KEY_PREFIX}job_id", ""))
        count = str(metadata.get(f"{SLURM_KEY_PREFIX}restart_count", ""))
        return SlurmJob(job_id, _number(count)) if job_id else None


def slurm_metadata(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that describe the job, as metadata of the run; empty outside Slurm.

    >>> slurm_metadata({"SLURM_JOB_ID": "7", "SLURM_JOB_PARTITION": "gpu"})
    {'slurm/job_id': '7', 'slurm/partition': 'gpu', 'slurm/restart_count': '0'}
    """
    job = SlurmJob.of_environment(environ)
    if job is None:
        return {}
    found = {
        name: next(filter(None, map(environ.get, variables)), "")
        for name, variables in _VARIABLES.items()
    }
    found["restart_count"] = str(job.restart_count)
    return {f"{SLURM_KEY_PREFIX}{name}": text for name, text in found.items() if text}


def slurm_variables(environ: Mapping[str, str]) -> dict[str, str]:
    """The variables that Slurm sets."""
    return {name: value for name, value in environ.items() if name.startswith("SLURM_")}


def node_run_id(run: str, environ: Mapping[str, str]) -> str:
    """The given id of a run, with the number of the node in the job on all nodes but the first.

    Nodes often share a home directory, and each stores a run of its own there.

    >>> node_run_id("grpo-7", {"SLURM_NODEID": "1"}), node_run_id("grpo-7", {"SLURM_NODEID": "0"})
    ('grpo-7.1', 'grpo-7')
    """
    node = _number(environ.get("SLURM_NODEID", ""))
    return f"{run}.{node}" if run and node else run


def step_seed(environ: Mapping[str, str], process: Process) -> list[str]:
    """What ranks have in common with those of the job after a requeue; empty if nothing.

    `process` is the process that the ranks of this node share. It is a task of a job step, or the
    daemon of the step: after a requeue the steps of a job have the same numbers. What a batch
    script or a task starts has none: each of several trainings there is a run of its own.
    """
    job, step = SlurmJob.of_environment(environ), environ.get("SLURM_STEP_ID", "")
    if job is None or not step.isdecimal():
        return []
    names = ["SLURM_CLUSTER_NAME", "SLURM_JOB_ID", "SLURM_STEP_ID", "SLURM_NODEID"]
    if not _is_step_daemon(process):
        parent = process.parent()
        if parent is None or not _is_step_daemon(parent):
            return []
        names.append("SLURM_LOCALID")
    return [environ.get(name, "") for name in names]


def _is_step_daemon(process: Process) -> bool:
    """Whether it is the process of Slurm that starts the tasks of a step on one node."""
    program = (read_arguments(process.pid) or [""])[0]
    return program.rpartition("/")[2].startswith("slurmstepd")


def _number(text: str) -> int:
    return int(text) if text.isdecimal() else 0
