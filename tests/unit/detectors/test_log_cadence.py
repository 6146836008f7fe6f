"""Tests of the detector log_cadence."""

import pytest

from sentinel.detectors.log_cadence import LogCadence
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.testing import first_finding, steps, update_detector


def rows(*intervals, **more):
    """Rows with these intervals between them."""
    step, counted = 0.0, []
    for interval in intervals:
        step += interval
        counted.append(step)
    return steps(global_step=counted, **more)


@pytest.mark.parametrize("other", [1.0, 2.0, 5.0, 20.0, 100.0])
def test_a_log_that_is_written_more_or_less_often_is_found_at_its_fourth_row(other):
    record, finding = first_finding(LogCadence(), rows(*[10.0] * 60, *[other] * 20))

    assert (record.step, finding.onset_step) == (64, 61)
    assert LogCadence.severity is Severity.INFO
    assert finding.evidence["usual_steps_between_rows"] == 10.0


@pytest.mark.parametrize(
    "intervals",
    [
        [1.0, 9.0, *[10.0] * 200],
        [*[10.0] * 60, 3.0, 7.0, *[10.0] * 60, 4.0],
        [*[10.0] * 60, *[2.0, 3.0] * 60],
        [*[10.0] * 60, *[8.0] * 60],
        [*[1.0, 10.0, 3.0] * 60],
        [*[10.0] * 60, *[0.0, 10.0] * 60],
    ],
)
def test_single_rows_and_logs_without_a_rhythm_are_no_change(intervals):
    assert first_finding(LogCadence(), rows(*intervals)) == (None, None)


def test_a_cadence_that_stays_is_the_usual_one():
    detector = LogCadence()
    outputs = [update_detector(detector, each) for each in rows(*[10.0] * 60, *[1.0] * 60)]
    assert isinstance(outputs[70], Finding)
    assert isinstance(outputs[-1], Clear)


def test_a_resume_begins_anew():
    records = rows(*[10.0] * 60, -300.0, *[1.0] * 30)
    assert first_finding(LogCadence(), records) == (None, None)


def test_the_records_of_the_client_are_not_evaluated():
    intervals = [*[10.0] * 60, *[1.0] * 60]
    records = rows(*intervals, optimizer_steps=[float(n) for n in range(120)])
    assert first_finding(LogCadence(), records) == (None, None)
