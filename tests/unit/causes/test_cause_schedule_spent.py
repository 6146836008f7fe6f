"""Tests of the cause schedule_spent."""

from __future__ import annotations

from support.diagnoses import diagnose, diagnose_run, make_context
from support.tiny_trainings import GOOD_LEARNING_RATE, Training

from sentinel.causes.schedule_spent import ScheduleSpent

METADATA = {"framework": "transformers", "learning_rate": GOOD_LEARNING_RATE, "max_steps": 500.0}


def test_a_schedule_that_ends_half_way_is_diagnosed():
    run = Training(rate=lambda step: GOOD_LEARNING_RATE * max(0.0, 1 - step / 250), count=500)
    replay = diagnose_run(run.records(), METADATA)

    assert replay.causes == ["schedule_spent"]
    (case,) = replay.cases.values()
    assert "0.003 was declared" in case.diagnosis.evidence[-1].text
    assert "`max_steps`" in case.diagnosis.remedy


def test_a_warm_up_that_never_rises_is_diagnosed():
    run = Training(rate=lambda _: GOOD_LEARNING_RATE / 10_000, count=300)
    replay = diagnose_run(run.records(), {**METADATA, "warmup_steps": 100.0})

    assert replay.causes == ["schedule_spent"]
    (case,) = replay.cases.values()
    detectors = {case.incident.key.detector, *(each.key.detector for each in case.others)}
    assert {"learning_rate_anomaly", "loss_never_moved"} <= detectors


def test_a_schedule_as_long_as_the_run_has_no_case():
    run = Training(rate=lambda step: GOOD_LEARNING_RATE * (1 - step / 501), count=500)

    assert diagnose_run(run.records(), METADATA).causes == []


def test_a_learning_rate_of_0_since_the_start_has_another_cause():
    run = Training(rate=lambda _: 0.0, count=250)

    assert diagnose_run(run.records(), METADATA).causes == ["frozen_parameters"]


def test_a_loss_plateau_alone_has_no_cause():
    assert (
        diagnose(
            make_context(METADATA, {"learning_rate": 0.0}, loss_plateau=90), {"it": ScheduleSpent()}
        )
        is None
    )
