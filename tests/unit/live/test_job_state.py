"""The state that ended a job, from recorded answers of Slurm 22.05."""

from __future__ import annotations

import tempfile

import pytest
from support.rank_processes import until

from sentinel.live.job_state import JobQuery, JobState, end_state
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.transport.slurm_job import SlurmJob

ENDED = "JobId=1 JobState={} Reason={} Requeue=1 Restarts=0 ExitCode=0:15 PreemptTime=None"
ANSWERS = {
    "cancelled": (ENDED.format("COMPLETING", "None"), "CANCELLED"),
    "cancelled, before its script has ended": (
        "JobState=COMPLETING Reason=None Requeue=1 Restarts=0 ExitCode=0:0 PreemptTime=None",
        "COMPLETING",
    ),
    "time limit": (
        "JobState=COMPLETING Reason=TimeLimit Requeue=1 Restarts=0 ExitCode=0:15 PreemptTime=None",
        "TIMEOUT",
    ),
    "preempted": (
        "JobState=COMPLETING Reason=None Restarts=0 ExitCode=0:0 PreemptTime=2026-11-30T21:15:07",
        "PREEMPTED",
    ),
    "preempted, in its grace time": (
        "JobState=RUNNING Reason=None Restarts=0 PreemptTime=2026-11-30T21:15:07",
        "PREEMPTED",
    ),
    "preempted and requeued": (
        "JobState=COMPLETING Reason=None Requeue=1 Restarts=1 ExitCode=0:0",
        "REQUEUED",
    ),
    "node": (
        "JobState=COMPLETING Reason=NodeDown Requeue=0 Restarts=0 ExitCode=0:0 PreemptTime=None",
        "NODE_FAIL",
    ),
    "over": (ENDED.format("NODE_FAIL", "NodeDown"), "NODE_FAIL"),
    "memory": (ENDED.format("OUT_OF_MEMORY", "OutOfMemory"), "OUT_OF_MEMORY"),
    "an end of its own": (
        "JobState=COMPLETING Reason=NonZeroExitCode Restarts=0 ExitCode=1:0 PreemptTime=None",
        "",
    ),
    "failed": (ENDED.format("FAILED", "NonZeroExitCode"), ""),
    "running": (ENDED.format("RUNNING", "None"), ""),
    "unknown": ("", ""),
    "noise": ("\0\xff =x= JobState Restarts=many", ""),
}


@pytest.mark.parametrize(("answer", "state"), ANSWERS.values(), ids=ANSWERS)
def test_a_state_is_read_while_the_job_ends_and_afterwards(answer, state):
    assert end_state(answer, 0) == state


def test_earlier_requeues_are_not_the_end_of_this_attempt():
    answer = "JobState=COMPLETING Reason=TimeLimit Restarts=2 ExitCode=0:15 PreemptTime=None"

    assert (end_state(answer, 2), end_state(answer, 1)) == ("TIMEOUT", "REQUEUED")


def test_nothing_waits_where_there_is_no_scontrol(monkeypatch):
    monkeypatch.setenv("PATH", "")
    heartbeat = Record("run", WHOLE_RUN, 0, 0.0, Event.HEARTBEAT, {}, {"cause": "died"})

    state = JobState(SlurmJob("7"))
    assert state.annotate_heartbeat(heartbeat, is_final=True) == heartbeat
    assert JobState().annotate_heartbeat(heartbeat, is_final=True) is heartbeat


def test_the_state_is_read_while_no_disk_has_space(monkeypatch, tmp_path):
    program = tmp_path / "scontrol"
    program.write_text("#!/bin/sh\necho JobState=COMPLETING Reason=TimeLimit Restarts=0\n")
    program.chmod(0o700)
    monkeypatch.setenv("PATH", str(tmp_path), prepend=":")
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "none"))
    query = JobQuery(SlurmJob("1"))
    until(query.poll, 10.0, "scontrol has ended")

    assert query.state == "TIMEOUT"
