"""Tests of the cause gpu_failing."""

from __future__ import annotations

from itertools import chain
from random import Random

import pytest
from support.aligned_steps import combine_step
from support.diagnoses import diagnose_run

from sentinel.model.record import Event
from sentinel.testing import event


def looks(xid, errors=0.0):
    """The driver's word before step 100 and at it."""
    yield event(Event.HEARTBEAT, 99, time=99.0, gpu_ecc_errors=0.0)
    told = {"gpu_xid": xid} if xid else {}
    yield event(Event.HEARTBEAT, 100, time=100.0, gpu_ecc_errors=errors, **told)


def parting(first, last, apart, lag=0.0):
    """Four replicas, whose third has another norm from step 110 on, and is late for it."""
    rng = Random(first)
    for step in range(first, last):
        norms, waits = [1.0 + 0.1 * (step % 7)] * 4, [0.02 * rng.random() for _ in range(4)]
        if step >= 110:
            norms[2] *= apart
            waits[2] += lag
        time = [0.5 + max(waits)] * 4
        yield combine_step(step, grad_norm=norms, data_wait=waits, step_time=time)


@pytest.mark.parametrize(
    "look", [looks(79.0), looks(0.0, errors=3.0)], ids=["an XID", "memory errors"]
)
def test_errors_of_a_gpu_and_a_rank_that_parts_are_one_case(look):
    replay = diagnose_run(chain(parting(1, 100, 1.0), look, parting(100, 160, 1.01)))

    assert replay.causes == ["gpu_failing"]
    (case,) = replay.cases.values()
    assert [each.key.detector for each in case.others] == ["rank_desync"]
    assert "GPU of rank 2" in case.diagnosis.remedy
    assert "last checkpoint before" in case.diagnosis.remedy


def test_replicas_that_part_on_healthy_gpus_are_another_cause():
    replay = diagnose_run(chain(parting(1, 100, 1.0), parting(100, 160, 1.01)))

    assert replay.causes == ["ranks_out_of_step"]


def test_a_rank_that_is_late_where_a_program_erred_is_another_cause():
    """XID 31 is an error of the program, and info only."""
    replay = diagnose_run(chain(parting(1, 100, 1.0), looks(31.0), parting(100, 200, 1.0, lag=0.5)))

    assert replay.causes == ["slow_rank"]
