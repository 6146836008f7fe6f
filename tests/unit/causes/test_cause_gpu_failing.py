"""Tests of the cause gpu_failing."""

from __future__ import annotations

from itertools import chain
from random import Random

import pytest
from support.aligned_steps import combine_step
from support.diagnoses import diagnose_run

from sentinel.model.record import Event
from sentinel.testing import event


def gpu_heartbeats(xid, errors=0.0):
    """What the driver reports at steps 99 and 100."""
    yield event(Event.HEARTBEAT, 99, time=99.0, gpu_ecc_errors=0.0)
    xid_value = {"gpu_xid": xid} if xid else {}
    yield event(Event.HEARTBEAT, 100, time=100.0, gpu_ecc_errors=errors, **xid_value)


def replicas(first, last, factor, lag=0.0):
    """From step 110 on, the third of four replicas is late and its norm differs by `factor`."""
    rng = Random(first)
    for step in range(first, last):
        norms, waits = [1.0 + 0.1 * (step % 7)] * 4, [0.02 * rng.random() for _ in range(4)]
        if step >= 110:
            norms[2] *= factor
            waits[2] += lag
        time = [0.5 + max(waits)] * 4
        yield combine_step(step, grad_norm=norms, data_wait=waits, step_time=time)


@pytest.mark.parametrize(
    "heartbeats",
    [gpu_heartbeats(79.0), gpu_heartbeats(0.0, errors=3.0)],
    ids=["an XID", "memory errors"],
)
def test_gpu_errors_and_a_diverging_replica_are_one_case(heartbeats):
    replay = diagnose_run(chain(replicas(1, 100, 1.0), heartbeats, replicas(100, 160, 1.01)))

    assert replay.causes == ["gpu_failing"]
    (case,) = replay.cases.values()
    assert [each.key.detector for each in case.others] == ["rank_desync"]
    assert "GPU of rank 2" in case.diagnosis.remedy
    assert "use another: start again from before the onset" in case.diagnosis.remedy


def test_a_diverging_replica_on_a_healthy_gpu_has_another_cause():
    replay = diagnose_run(chain(replicas(1, 100, 1.0), replicas(100, 160, 1.01)))

    assert replay.causes == ["ranks_out_of_step"]


def test_an_error_of_the_program_does_not_explain_a_late_rank():
    """XID 31 is an error of the program, and info only."""
    replay = diagnose_run(
        chain(replicas(1, 100, 1.0), gpu_heartbeats(31.0), replicas(100, 200, 1.0, lag=0.5))
    )

    assert replay.causes == ["slow_rank"]
