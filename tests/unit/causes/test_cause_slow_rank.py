"""Tests of the cause slow_rank."""

from __future__ import annotations

from random import Random

import pytest
from support.aligned_steps import combine_step
from support.diagnoses import decaying_loss, diagnose_run

from sentinel.model.finding import Severity
from sentinel.model.record import WHOLE_RUN, Event, Record

METADATA = {"framework": "transformers"}


def waits(seed, late, count=260, onset=130, **more):
    """From `onset` on, ranks in `late` wait almost a second for data, and all others for them."""
    rng = Random(seed)
    for step in range(1, count + 1):
        row = [0.01 + 0.02 * rng.random() for _ in range(4)]
        for rank in late if step >= onset else ():
            row[rank] += 0.8 + 0.1 * rng.random()
        time = [0.5 + max(row)] * 4
        more_rows = {name: [series[step - 1]] * 4 for name, series in more.items()}
        yield combine_step(step, data_wait=row, step_time=time, tokens=[1000.0] * 4, **more_rows)


@pytest.mark.parametrize("seed", range(5))
def test_a_rank_that_all_others_wait_for_is_diagnosed(seed):
    replay = diagnose_run(waits(seed, [2]), METADATA)

    assert list(replay.named_causes) == ["slow_rank"]
    assert len(replay.notifications) == 1
    (case,) = replay.cases.values()
    assert "node of rank 2" in case.diagnosis.remedy
    assert "`dataloader_num_workers`" in case.diagnosis.remedy
    assert case.incident.severity is Severity.WARNING


def test_a_data_wait_on_all_ranks_has_another_cause():
    assert diagnose_run(waits(1, [0, 1, 2, 3]), METADATA).causes == ["slow_data"]


def test_a_rank_that_waits_a_little_longer_than_all_others_is_not_the_cause():
    def longer():
        for step in range(1, 261):
            row = [0.01, 0.01] if step < 130 else [0.8, 1.0]
            yield combine_step(step, data_wait=row, step_time=[0.5 + max(row)] * 2)

    replay = diagnose_run(longer(), METADATA)

    assert list(replay.named_causes) == ["slow_data"]


def test_gpu_errors_have_another_cause():
    def failing():
        for record in waits(1, [2]):
            if record.step == 120:
                yield Record("run", WHOLE_RUN, 120, 120.0, Event.HEARTBEAT, {"gpu_xid": 79.0})
            yield record

    assert diagnose_run(failing(), METADATA).causes == ["gpu_failing"]


def test_a_simultaneous_loss_divergence_is_a_separate_case():
    losses = decaying_loss(0, 260)
    losses[150:] *= 5.0
    replay = diagnose_run(waits(1, [2], loss=losses.tolist()), METADATA)

    assert len(replay.cases) == 2
    assert "slow_rank" in replay.causes
