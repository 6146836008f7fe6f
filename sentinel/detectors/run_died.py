"""Death of a rank: the process of a rank ended without a final message.

Formula
    Finding    = the first failure of the run is the end of a process without STOP: by a signal, by
                 the out-of-memory killer, or with an exit code other than 0. It is reported once no
                 rank is left, or `settle` seconds later; in a run on several nodes, if it is not
                 known how the process ended, once all other nodes have reported since, and not if a
                 lost node explains it (see `node_lost`). With an elastic launcher whose ranks end
                 within 35 seconds, only if they do not restart or the launcher reports their
                 failure
    warning    = the ranks were ended by SIGTERM or SIGHUP, as by `scancel`,
                 `kubectl delete`, a preemption or a closed terminal; after four times `settle`
    info       = `sentinel run` received that signal and passed it on
    In a Slurm job, its state decides instead, if one ended it and no rank failed by itself:
    critical for OUT_OF_MEMORY and NODE_FAIL, warning for TIMEOUT, DEADLINE and PREEMPTED, info for
    CANCELLED, and for a job that was requeued

    The first failure is the earliest one, except that a connection error, an abort or an end by
    SIGTERM within seconds of a rank that ended by itself follows from that rank. The ranks that
    followed are named as such.

Units
    `ranks_gone`: ranks of the current attempt whose process no longer exists. `settle`: seconds.

Source
    SIGKILL, the out-of-memory killer and `os._exit` leave no time for a message, so death is
    detected from outside, by pidfd_open(2). How a process ended is read from /proc until its parent
    has waited for it, and on Linux 6.15 or newer from the pidfd at any time; on older kernels it
    may stay unknown, unless `sentinel run` is the parent. Kills for want of memory are counted in
    `memory.events` of the control group of the process (`memory.oom_control` in version 1).
    The state of a job is that of `scontrol show job`, for which the report waits at most 3 seconds.

    The sender of a signal is not known. A rank that handles SIGTERM and is ended by SIGKILL later
    counts as ended by SIGTERM if `sentinel run` or the agent had received SIGTERM up to two
    minutes before.

Defaults
    `settle` 0.5 lets the notification name all ranks that ended together: a launcher polls every
    tenth of a second and ends the others at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from sentinel.detectors._job_ends import job_end
from sentinel.detectors._rank_ends import (
    CRASHES,
    death_text,
    followers_text,
    format_ranks,
    ranks_in,
)
from sentinel.model.finding import CLEAR, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import Record

STOPPED_SETTLE_FACTOR = 4.0
"""How much longer an end by SIGTERM is held: what caused it may be reported by another node."""
RUN_LAUNCHER = "sentinel run"
STOPPED_REMEDY = (
    "If you did not end this job, look in the scheduler's log for a preemption, a time limit or a "
    "deleted job, then resume from the last checkpoint."
)
_EVIDENCE = ("signal", "code", "exit_code", "memory_limit", "job_id", "job_state")


@dataclass
class RunDied:
    """Evaluates `ranks_gone`."""

    settle: float = 0.5

    needs = frozenset({"ranks_gone"})
    signal = "ranks_gone"
    severity = Severity.CRITICAL
    scope = Scope.PROCESS
    remedy = (
        "Look for the out-of-memory killer (`dmesg`, `memory.events` of the cgroup). Read the "
        "scheduler's log, and check the node. Resume from the last checkpoint."
    )

    def __post_init__(self) -> None:
        self._died_time: float | None = None

    def update(self, record: Record) -> DetectorOutput:
        cause = record.attributes.get("cause")
        if cause not in ("died", "stopped"):
            self._died_time = None
            return CLEAR
        # `settle` counts from the first such record, or from now if the clock was set back.
        self._died_time = (
            record.time if self._died_time is None else min(record.time, self._died_time)
        )
        if record.attributes.get("failure_origin") or record.attributes.get("elastic_restart"):
            return None
        is_stopped = cause == "stopped"
        settle = self.settle * (STOPPED_SETTLE_FACTOR if is_stopped else 1.0)
        is_settled = record.time - self._died_time >= settle
        if self._may_change(record) and (
            not is_settled or "job_state_pending" in record.attributes
        ):
            return None
        return _stopped_finding(record) if is_stopped else _death_finding(record)

    @staticmethod
    def _may_change(record: Record) -> bool:
        """Whether a later heartbeat may know more. The last heartbeat of an agent is final."""
        attributes = record.attributes
        # A launcher that still waits for the command reports the signal that ended it.
        is_awaited = "signal" not in attributes and attributes.get("launcher") == "running"
        is_open = (
            bool(record.values["ranks_running"])
            or is_awaited
            or "job_state_pending" in attributes
            or attributes["cause"] == "stopped"
        )
        return is_open and "final" not in attributes


def _death_finding(record: Record) -> Finding:
    attributes = record.attributes
    culprits = ranks_in(attributes, "culprit_ranks") or ranks_in(attributes, "died_ranks")
    how = death_text(attributes)
    verb = "" if how.startswith("ended") else "was " if len(culprits) == 1 else "were "
    silence = "" if "signal" in attributes else " without an error message"
    agent = ", together with the agent of the run" if "agent_killed" in attributes else ""
    running = int(record.values["ranks_running"])
    rest = followers_text(attributes, running) or "no rank is left"
    # A job that is requeued or cancelled after a rank crashed, exited or ran out of its memory
    # changes nothing of that.
    is_own = attributes.get("signal") in CRASHES or not {"code", "oom_kill"}.isdisjoint(attributes)
    job = None if is_own else job_end(attributes)
    return Finding(
        summary=f"{format_ranks(culprits)} {verb}{how} at step {record.step}{silence}{agent}; "
        f"{rest}.{_job_sentence(attributes)}",
        evidence=_evidence(record),
        severity=None if job is None else job.severity,
        rank=culprits[0],
        remedy=_remedy(attributes) if job is None else job.remedy,
    )


def _stopped_finding(record: Record) -> Finding:
    attributes = record.attributes
    culprits = ranks_in(attributes, "culprit_ranks")
    verb = "was" if len(culprits) == 1 else "were"
    by_us = attributes.get("stop_requested_by") == RUN_LAUNCHER
    job = job_end(attributes)
    severity = Severity.INFO if by_us else Severity.WARNING
    rest = followers_text(attributes, int(record.values["ranks_running"]))
    return Finding(
        summary=f"{format_ranks(culprits)} {verb} ended by {attributes.get('signal', 'SIGTERM')} "
        f"at step {record.step}{f'; {rest}' if rest else ''}.{_job_sentence(attributes)}",
        evidence=_evidence(record),
        severity=severity if job is None else job.severity or severity,
        remedy=STOPPED_REMEDY if job is None else job.remedy,
    )


def _job_sentence(attributes: Mapping[str, str]) -> str:
    """What ended the Slurm job, after another sentence; empty if that is not known."""
    job = job_end(attributes)
    if job is None:
        return ""
    return f" Slurm job {attributes['job_id']} {job.text} ({attributes['job_state']})."


def _evidence(record: Record) -> dict[str, float | str]:
    known = {name: record.attributes[name] for name in _EVIDENCE if name in record.attributes}
    return {"ranks_gone": record.values["ranks_gone"], "last_step": record.step, **known}


def _remedy(attributes: Mapping[str, str]) -> str | None:
    """What to do after an end of this kind; None for the remedy of the detector."""
    if attributes.get("oom_kill"):
        return (
            "Use less memory on the host: lower {number of data loader workers}, use smaller "
            "caches, and keep no copy of the model on the CPU. Otherwise raise the memory limit "
            "of the job. Resume from the last checkpoint."
        )
    if attributes.get("signal") in CRASHES:
        return (
            "Read the end of that rank's log; `PYTHONFAULTHANDLER=1` adds the Python stack of a "
            "crash. Check the GPU and driver of its node. Resume from the last checkpoint."
        )
    if "code" in attributes:
        return "Read in that rank's log what ended the process. Resume from the last checkpoint."
    return None
