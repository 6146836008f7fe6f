"""Tests of the cause slow_data."""

from __future__ import annotations

from random import Random

import pytest
from support.diagnoses import diagnose, diagnose_run, make_context

from sentinel.causes.slow_data import SlowData
from sentinel.testing import steps

METADATA = {"framework": "trl", "algorithm": "sft"}


def starving(seed, wait=1.0, count=260, onset=130):
    """Steps with 0.5 s of work; from `onset` on, they wait for data for about `wait` seconds."""
    rng = Random(seed)
    waits = [
        0.01 + (wait if n >= onset else 0.0) * (0.8 + 0.4 * rng.random()) for n in range(count)
    ]
    return steps(data_wait=waits, step_time=[0.5 + x for x in waits], tokens=[1000.0] * count)


@pytest.mark.parametrize("seed", range(5))
def test_a_loader_that_falls_behind_is_one_case(seed):
    replay = diagnose_run(starving(seed), METADATA)

    assert replay.causes == ["slow_data"]
    assert len(replay.notifications) == 1
    (case,) = replay.cases.values()
    assert {case.incident.key.detector, *(each.key.detector for each in case.others)} == {
        "data_stall", "throughput_drop",
    }  # fmt: skip
    assert "`dataloader_num_workers`" in case.diagnosis.remedy


def test_a_loader_that_was_always_slow_has_no_case():
    assert diagnose_run(starving(1, onset=0), METADATA).causes == []


def test_a_slower_run_without_a_data_wait_has_another_cause():
    assert diagnose(make_context(throughput_drop=100, gpu_underuse=120), {"it": SlowData()}) is None


def test_a_wait_on_one_rank_has_another_cause():
    context = make_context(data_stall=100, throughput_drop=100, straggler=100)

    assert diagnose(context, {"it": SlowData()}) is None
