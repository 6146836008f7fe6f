"""Reads the state of the run's Slurm job once a rank was killed or got a signal to end.

Slurm ends the processes of a job for reasons that they do not see: its time limit, a node that
failed, a preemption. `scontrol` shows the reason while they end and for minutes afterwards.
"""

from __future__ import annotations

import os
import re
import subprocess
import time
from dataclasses import dataclass, replace
from threading import Thread

from sentinel.model.record import Record
from sentinel.transport.slurm_job import SlurmJob

ANSWER_SECONDS = 3.0
"""How long the report of a death waits for the answer; it takes some hundredths of a second."""
MAX_ANSWER_BYTES = 1 << 16
POLL_SECONDS = 0.02
REQUEUED, COMPLETING = "REQUEUED", "COMPLETING"
"""State of a job that waits to be started again, and of one that ends for a hidden reason."""

_END_STATES = frozenset({
    "CANCELLED", "DEADLINE", "NODE_FAIL", "OUT_OF_MEMORY", "PREEMPTED", "TIMEOUT",
})  # fmt: skip
_STATE_BY_REASON = {
    "TimeLimit": "TIMEOUT",
    "NodeDown": "NODE_FAIL",
    "OutOfMemory": "OUT_OF_MEMORY",
    "DeadLine": "DEADLINE",
}
_FIELD = re.compile(r"(\w+)=(\S*)")


@dataclass
class JobState:
    """The state of the job of a run, read once for each attempt.

    `job` is None where the ranks are in no job.
    """

    job: SlurmJob | None = None
    _queried_attempt: int = -1
    _query: JobQuery | None = None

    def annotate_heartbeat(self, heartbeat: Record, *, is_final: bool) -> Record:
        """The heartbeat, with what is known of the job if ranks died or were stopped.

        Attributes: `job_id` and `job_state` (see `end_state`) if Slurm ends the job, and
        `job_state_pending` while the answer is awaited. A final heartbeat waits for it.
        """
        if self.job is None or heartbeat.attributes.get("cause") not in ("died", "stopped"):
            return heartbeat
        if self._query is None or self._queried_attempt != heartbeat.attempt:
            self._queried_attempt, self._query = heartbeat.attempt, JobQuery(self.job)
        query = self._query
        while not query.poll() and is_final:
            time.sleep(POLL_SECONDS)
        known = {"job_state_pending": "yes"}
        if query.has_ended:
            known = {"job_id": self.job.job_id, "job_state": query.state} if query.state else {}
        return replace(heartbeat, attributes={**heartbeat.attributes, **known})


class JobQuery:
    """One call of `scontrol` about a job, for whose output nothing waits.

    `state` is that of `end_state`; empty if there is no `scontrol`, and if it has not ended in
    `ANSWER_SECONDS`.
    """

    def __init__(self, job: SlurmJob) -> None:
        self.state = ""
        self.has_ended = False
        self._job, self._deadline = job, time.monotonic() + ANSWER_SECONDS
        self._child: subprocess.Popen[bytes] | None = None
        try:
            # A full pipe would block the program, and a disk may be full.
            self._output = os.fdopen(os.memfd_create("scontrol"), "w+b")
        except OSError:
            self.has_ended = True
            return
        self._start()

    def poll(self) -> bool:
        """Whether the answer is known or given up; never waits."""
        if self._child is None or self.has_ended:
            return self.has_ended
        status = self._child.poll()
        if time.monotonic() > self._deadline:
            self._give_up(self._child)
        elif status is not None and status < 0:
            # The signal that ends the job may hit it too.
            self._start()
        elif status is not None:
            self._output.seek(0)
            answer = self._output.read(MAX_ANSWER_BYTES).decode(errors="replace")
            self.state = end_state(answer, self._job.restart_count)
            self._close()
        return self.has_ended

    def _start(self) -> None:
        try:
            self._child = subprocess.Popen(  # noqa: S603 - the id is that of Slurm
                ["scontrol", "--oneliner", "show", "job", self._job.job_id],  # noqa: S607
                stdin=subprocess.DEVNULL,
                stdout=self._output,
                stderr=subprocess.DEVNULL,
            )
        except OSError:
            self._close()

    def _give_up(self, child: subprocess.Popen[bytes]) -> None:
        child.kill()
        # One that waits for a file server may not end even when killed.
        Thread(target=child.wait, name="sentinel-scontrol", daemon=True).start()
        self._close()

    def _close(self) -> None:
        self.has_ended = True
        self._output.close()


def end_state(answer: str, restart_count: int) -> str:
    """The state that ended a job, REQUEUED, or COMPLETING if it is not known; else empty.

    `answer` is the line of `scontrol show job`.

    A job whose processes still end has the state COMPLETING, which hides the other: that follows
    from the reason, from the time of a preemption, and from the exit code of a job that was
    cancelled. `restart_count` is that with which the job was started: a requeue increases it.

    >>> end_state("JobId=7 JobState=COMPLETING Reason=TimeLimit Restarts=0", 0)
    'TIMEOUT'
    >>> end_state("JobId=7 JobState=PENDING Reason=BeginTime Restarts=1", 0)
    'REQUEUED'
    >>> end_state("JobId=7 JobState=RUNNING Reason=None Restarts=1", 1)
    ''
    """
    fields = dict(_FIELD.findall(answer))
    restarts = fields.get("Restarts", "")
    if restarts.isdecimal() and int(restarts) > restart_count:
        return REQUEUED
    if fields.get("PreemptTime", "None") not in ("", "None", "N/A"):
        return "PREEMPTED"
    state, reason = fields.get("JobState", ""), fields.get("Reason", "")
    if state == COMPLETING:
        if reason != "None":
            return _STATE_BY_REASON.get(reason, "")
        # A script that fails by itself is the reason; one that has ended well, or runs, is not.
        return COMPLETING if fields.get("ExitCode") == "0:0" else "CANCELLED"
    return state if state in _END_STATES else ""
