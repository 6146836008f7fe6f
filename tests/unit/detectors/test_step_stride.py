"""Tests of the detector step_stride."""

import pytest

from sentinel.detectors.step_stride import StepStride
from sentinel.model.finding import Clear, Finding
from sentinel.model.record import Event, Record
from sentinel.testing import first_finding, steps, update_detector


def begun(framework):
    return Record("run", -1, 0, 0.0, Event.START, attributes={"framework": framework})


def counted(global_steps, optimizer_steps=None):
    counts = optimizer_steps or [float(n) for n in range(len(global_steps))]
    return steps(global_step=[float(step) for step in global_steps], optimizer_steps=counts)


@pytest.mark.parametrize("epochs", [1, 2, 4])
def test_the_counter_of_trl_2124_is_named_from_its_first_steps(epochs):
    """One for the update, and one for each of its optimizer steps: 500 steps before any save."""
    updates = counted([(epochs + 1) * n for n in range(40)], [float(epochs * n) for n in range(40)])
    record, finding = first_finding(StepStride(), [begun("trl"), *updates])

    assert record.values["global_step"] == 4 * (epochs + 1)
    assert finding.evidence == {
        "counted_steps_per_update": (epochs + 1) / epochs,
        "expected_steps_per_update": 1.0,
    }


def test_a_doubled_stride_is_found_after_four_records_with_the_first_as_onset():
    record, finding = first_finding(StepStride(), counted([*range(50), *range(51, 90, 2)]))

    assert finding.onset_step == 51
    assert record.step == 54


def test_several_optimizer_steps_per_rollout_are_clear():
    updates = counted(range(40), [8.0 * n for n in range(40)])

    assert first_finding(StepStride(), [begun("trl"), *updates]) == (None, None)


def test_a_stride_that_is_constant_since_the_start_is_clear():
    """Micro-batches, or the optimizers of a game between two networks, are counted on purpose."""
    assert first_finding(StepStride(), counted(range(0, 200, 2))) == (None, None)


def test_steps_skipped_by_a_scaler_are_clear():
    skipping = [n + (n > 10) + (n > 11) + (n > 30) for n in range(60)]

    assert first_finding(StepStride(), [begun("trl"), *counted(skipping)]) == (None, None)


def test_an_irregular_counter_is_not_evaluated():
    uneven = [n * n for n in range(60)]

    assert {update_detector(StepStride(), record) for record in counted(uneven)} == {None}


def test_a_resume_is_no_stride():
    records = [*counted(range(20)), begun("trl"), *counted(range(500, 520))]

    assert first_finding(StepStride(), records) == (None, None)


def test_it_clears_once_the_counter_is_right_again():
    detector = StepStride()
    outputs = [
        update_detector(detector, record)
        for record in [begun("trl"), *counted([*range(0, 40, 2), *range(40, 60)])]
    ]

    assert isinstance(outputs[20], Finding)
    assert outputs[-1] == Clear()
