"""Tests of the cause schedule_spent."""

from __future__ import annotations

from support.diagnoses import diagnose_run, make_context
from support.tiny_trainings import GOOD_LEARNING_RATE, Training

from sentinel.causes.schedule_spent import ScheduleSpent
from sentinel.pipeline.diagnose import diagnose

FACTS = {"framework": "transformers", "learning_rate": GOOD_LEARNING_RATE, "max_steps": 500.0}


def test_a_schedule_that_is_over_half_way_is_named():
    run = Training(rate=lambda step: GOOD_LEARNING_RATE * max(0.0, 1 - step / 250), count=500)
    replay = diagnose_run(run.records(), FACTS)

    assert replay.causes == ["schedule_spent"]
    (case,) = replay.cases.values()
    assert "0.003 was declared" in case.diagnosis.evidence[-1].text
    assert "`max_steps`" in case.diagnosis.remedy


def test_a_warm_up_that_never_gets_anywhere_is_named():
    run = Training(rate=lambda _: GOOD_LEARNING_RATE / 10_000, count=300)
    replay = diagnose_run(run.records(), {**FACTS, "warmup_steps": 100.0})

    assert replay.causes == ["schedule_spent"]
    (case,) = replay.cases.values()
    detectors = {case.incident.key.detector, *(each.key.detector for each in case.others)}
    assert {"learning_rate_anomaly", "loss_never_moved"} <= detectors


def test_a_schedule_as_long_as_the_run_has_no_case():
    run = Training(rate=lambda step: GOOD_LEARNING_RATE * (1 - step / 501), count=500)

    assert diagnose_run(run.records(), FACTS).causes == []


def test_a_learning_rate_that_never_was_any_is_another_cause():
    run = Training(rate=lambda _: 0.0, count=250)

    assert diagnose_run(run.records(), FACTS).causes == ["frozen_parameters"]


def test_a_loss_that_stands_by_itself_is_none():
    assert (
        diagnose(
            make_context(FACTS, {"learning_rate": 0.0}, loss_plateau=90), {"it": ScheduleSpent()}
        )
        is None
    )
