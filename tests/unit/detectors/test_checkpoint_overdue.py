"""Tests of the detector checkpoint_overdue."""

import pytest

from sentinel.detectors.checkpoint_overdue import CheckpointOverdue
from sentinel.model.finding import Clear, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, update_detector


def run(count, saves, first=1, **declared):
    yield event(Event.START, first - 1, **declared)
    for step in range(first, first + count):
        yield event(Event.STEP, step, global_step=float(step))
        if step in saves:
            yield event(Event.SAVE, step)


def test_a_missing_save_is_found_before_the_third_is_due():
    record, finding = first_finding(
        CheckpointOverdue(), run(1000, {100, 200, 300}, save_steps=100.0)
    )

    assert record.step == 551
    assert finding.severity is None
    assert finding.summary == (
        "The last checkpoint was saved 251 steps ago; the save interval is 100 steps."
    )


def test_a_run_that_never_saved_is_info():
    record, finding = first_finding(CheckpointOverdue(), run(1000, {}, save_steps=100.0))

    assert record.step == 252
    assert finding.severity is Severity.INFO


@pytest.mark.parametrize("declared", [{}, {"save_steps": 0.0}, {"save_steps": -1.0}])
def test_without_an_interval_nothing_is_overdue(declared):
    records = [*run(5000, {100, 200, 300}, **declared)]

    assert {update_detector(CheckpointOverdue(), record) for record in records} == {None}


def test_a_run_that_saves_as_declared_is_clear():
    saves = set(range(100, 2001, 100))

    assert first_finding(CheckpointOverdue(), run(2000, saves, save_steps=100.0)) == (None, None)


def test_a_resume_counts_from_its_first_step():
    records = run(200, {}, first=5000, save_steps=100.0)

    assert first_finding(CheckpointOverdue(), records) == (None, None)


def test_it_clears_at_a_late_save():
    detector = CheckpointOverdue()
    for record in run(900, {100, 800}, save_steps=100.0):
        output = update_detector(detector, record)

    assert output == Clear()
