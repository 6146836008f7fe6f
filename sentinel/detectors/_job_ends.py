"""What ended a Slurm job, in words, with the remedy: from the attribute `job_state`."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sentinel.model.finding import Severity


@dataclass(frozen=True, slots=True)
class JobEnd:
    """What became of the job, as the end of a sentence, how severe that is, and what to do.

    Without a severity, that of the end of the ranks stays.
    """

    text: str
    severity: Severity | None
    remedy: str


_RESUME = "Resume from the last checkpoint."
_TIMEOUT_REMEDY = (
    "Ask for more time (`--time`, at most that of `scontrol show partition`), or let the job save "
    "and requeue itself before its end (`--signal=B:USR1@300`; see `deploy/slurm/requeue.sh`). "
    f"{_RESUME}"
)
_ENDS: Mapping[str, JobEnd] = {
    "TIMEOUT": JobEnd("reached its time limit", Severity.WARNING, _TIMEOUT_REMEDY),
    "DEADLINE": JobEnd("reached its deadline", Severity.WARNING, _TIMEOUT_REMEDY),
    "OUT_OF_MEMORY": JobEnd(
        "ran out of memory",
        Severity.CRITICAL,
        "Ask for more memory of the host (`--mem`), or use less: lower {number of data loader "
        "workers}, use smaller caches, and keep no copy of the model on the CPU. The memory of "
        f"the GPUs does not count. {_RESUME}",
    ),
    "NODE_FAIL": JobEnd(
        "lost a node",
        Severity.CRITICAL,
        "Read why the node is down (`sinfo --list-reasons`), and submit the job without it "
        "(`--exclude`). With `--requeue`, Slurm starts a job again when a node fails. "
        f"{_RESUME}",
    ),
    "PREEMPTED": JobEnd(
        "was preempted",
        Severity.WARNING,
        "Submit it again, or use a partition or QOS of higher priority. Where the PreemptMode is "
        f"REQUEUE, a job with `--requeue` starts again by itself. {_RESUME}",
    ),
    "CANCELLED": JobEnd(
        "was cancelled",
        Severity.INFO,
        f"If you did not cancel it, `sacct --jobs JOB --format State%40` shows who did. {_RESUME}",
    ),
    "COMPLETING": JobEnd(
        "is being ended: it was cancelled, or its script has ended",
        None,
        "If you did not cancel it, `sacct --jobs JOB --format State%40` shows who did. A script "
        f"must wait for the training that it starts in the background. {_RESUME}",
    ),
    "REQUEUED": JobEnd(
        "was put back into the queue",
        Severity.INFO,
        "Nothing, if the training resumes by itself: Slurm starts the job again. If it does not "
        "start, `squeue --start --jobs JOB` shows the reason.",
    ),
}


def job_end(attributes: Mapping[str, str]) -> JobEnd | None:
    """What ended the job of the ranks; None if they are in none, or if nothing ended it.

    >>> job_end({"job_state": "TIMEOUT", "job_id": "7"}).text
    'reached its time limit'
    """
    end = _ENDS.get(attributes.get("job_state", ""))
    return None if end is None or "job_id" not in attributes else end
