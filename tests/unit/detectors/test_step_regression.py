"""Tests of the detector step_regression."""

from random import Random

import pytest

from sentinel.detectors.step_regression import StepRegression
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, steps, update_detector


def findings(records):
    detector = StepRegression()
    outputs = [(r, update_detector(detector, r)) for r in records]
    return [(int(r.values["global_step"]), o) for r, o in outputs if isinstance(o, Finding)]


def counted(global_steps, per_step=1, first=0):
    """Records of a client that counts `per_step` optimizer steps per record, from `first` on."""
    counts = [float(first + per_step * n) for n in range(len(global_steps))]
    return steps(global_step=global_steps, optimizer_steps=counts)


@pytest.mark.fault("R11")
def test_a_step_that_decreases_is_reported_until_it_exceeds_its_maximum():
    found = findings(counted([8.0, 9.0, 10.0, 8.0, 9.0, 10.0, 11.0, 12.0]))

    assert [step for step, _ in found] == [8, 9, 10]
    assert {finding.onset_step for _, finding in found} == {4}


def test_it_is_a_warning_in_a_log_as_it_may_be_a_resume():
    _, finding = first_finding(StepRegression(), steps(global_step=[279.0, 251.0, 252.0]))

    assert finding.severity is None
    assert finding.evidence == {
        "global_step": 252.0,
        "highest_global_step": 279.0,
        "global_step_after_regression": 251.0,
    }


def test_a_regression_without_a_restart_is_critical():
    _, finding = first_finding(StepRegression(), counted([1.0, 2.0, 3.0, 1.0]))

    assert finding.severity is Severity.CRITICAL


@pytest.mark.fault("R11")
def test_a_declared_start_excuses_it():
    before, after = steps(global_step=[100.0, 101.0]), steps(global_step=[90.0, 91.0])

    assert findings([*before, event(Event.START, 90), *after]) == []


def test_another_training_in_the_same_run_excuses_it():
    first = steps(global_step=[1.0, 2.0, 3.0], optimizer_steps=[1.0, 2.0, 3.0])
    begins = steps(global_step=[1.0], optimizer_steps=[4.0], restarted_after_step=[0.0])
    continues = steps(global_step=[2.0, 3.0], optimizer_steps=[5.0, 6.0])

    assert findings([*first, *begins, *continues]) == []


def loaded(at):
    """The record of a state that was loaded at that step."""
    return event(Event.METADATA, at, state_loaded_at_step=float(at))


def test_a_state_loaded_at_the_last_step_is_a_resume():
    before = [*counted([348.0, 349.0, 350.0])]
    after = [*counted([300.0, 301.0], first=4)]

    assert findings([*before, loaded(350), *after]) == []
    # Its record may come before those of the last steps, which wait for other ranks.
    assert findings([loaded(350), *before, *after]) == []


def test_a_state_loaded_long_before_is_no_resume():
    before = [*counted([348.0, 349.0, 350.0])]
    after = [*counted([300.0, 301.0], first=4)]

    assert findings([loaded(200), *before, *after])
    assert findings([*before, loaded(350), *after, *counted([280.0], first=6)])


def test_a_loaded_state_does_not_excuse_a_step_that_does_not_advance():
    assert findings([loaded(3), *counted([1.0, 2.0, *[3.0] * 8])])


def test_the_remedy_names_the_call_that_declares_a_resume():
    assert 'sentinel.mark("resume")' in StepRegression.remedy


def test_the_same_step_twice_is_normal_in_a_log():
    assert findings(steps(global_step=[10.0, 10.0, 10.0, 10.0, 20.0, 20.0])) == []


def test_a_constant_step_during_optimizer_steps_is_found():
    found = findings(counted([1.0, 2.0, 3.0, 3.0, 3.0, 3.0, 3.0, 3.0]))

    assert [step for step, _ in found] == [3]
    assert found[0][1].evidence["optimizer_steps_since_advance"] == 5.0


def test_several_optimizer_steps_per_trainer_step_are_clear():
    assert findings(counted([float(n // 64) for n in range(64 * 8)])) == []


def test_a_step_that_never_advances_is_found():
    found = findings(counted([0.0] * 300))

    assert len(found) == 300 - 257


def test_an_advancing_step_is_clear():
    detector = StepRegression()

    assert {type(update_detector(detector, r)) for r in steps(global_step=[1.0, 2.0])} == {Clear}


def test_a_record_without_a_trainer_step_is_not_evaluated():
    assert update_detector(StepRegression(), event(Event.STEP, 7, loss=1.0)) is None


def test_one_row_that_was_written_late_is_no_regression():
    late = steps(global_step=[20.0, 22.0, 21.0, 23.0, 24.0])

    assert first_finding(StepRegression(), late) == (None, None)


def test_a_regression_in_a_log_is_found_at_its_second_row_with_the_first_as_onset():
    record, finding = first_finding(StepRegression(), steps(global_step=[20.0, 21.0, 15.0, 16.0]))

    assert (record.step, finding.onset_step) == (4, 3)


def two_writers(rng, count, lag):
    """Rows of two processes that write a step each; the second is late by up to `lag` steps."""
    first, second, rows = 1, 1, []
    while first <= count:
        if second < first and (first - second > lag or rng.random() < 0.5):
            rows.append(float(second))
            second += 1
        else:
            rows.append(float(first))
            first += 1
    return rows


@pytest.mark.parametrize("lag", [1, 2, 3])
@pytest.mark.parametrize("seed", range(10))
def test_two_processes_that_write_one_log_are_no_regression(seed, lag):
    rows = two_writers(Random(seed), 300, lag)

    assert findings(steps(global_step=rows)) == []


@pytest.mark.parametrize("lag", [6, 20, 60])
@pytest.mark.parametrize("seed", range(10))
def test_two_processes_far_apart_are_reported_once_at_most(seed, lag):
    rows = two_writers(Random(seed), 300, lag)
    found = [finding for _, finding in findings(steps(global_step=rows))]

    assert len({finding.onset_step for finding in found if finding.severity is None}) <= 1


def test_a_log_that_repeats_steps_again_is_info():
    rows = [*range(1, 40), *range(20, 60), *range(40, 80)]
    found = findings(steps(global_step=[float(row) for row in rows]))

    assert {finding.severity for _, finding in found} == {None, Severity.INFO}
    assert found[0][1].severity is None
    assert found[-1][1].severity is Severity.INFO


def test_a_short_restart_is_found_once_the_number_advanced_beyond_its_maximum():
    rows = [*range(1, 21), *range(19, 40)]
    record, finding = first_finding(StepRegression(), steps(global_step=[float(r) for r in rows]))

    assert record.values["global_step"] == 25.0
    assert (finding.onset_step, finding.severity) == (21, None)
    assert finding.evidence["highest_global_step"] == 20.0


@pytest.mark.parametrize("late", [[18, 19, 22], [20, 22], [19, 20, 21, 21, 22, 22, 23, 23, 24, 24]])
def test_rows_that_are_written_late_are_no_short_restart(late):
    """With a gap, only one, and each step twice from then on."""
    rows = [*range(1, 21), 21, *late, *range(25, 40)]

    assert findings(steps(global_step=[float(row) for row in rows])) == []


def test_a_training_that_a_log_shows_by_its_steps_is_no_excuse():
    before, after = steps(global_step=[100.0, 101.0, 102.0]), steps(global_step=[1.0, 2.0, 3.0])
    begins = event(Event.TRAINING, 1, training_number=2.0)
    by_steps = event(Event.TRAINING, 1, training_number=2.0, steps_started_over=1.0)

    before, after = [*before], [*after]
    assert findings([*before, by_steps, *after])
    assert findings([*before, begins, *after]) == []


def test_only_the_first_of_several_trainings_in_a_log_is_a_warning():
    by_steps = event(Event.TRAINING, 1, training_number=2.0, steps_started_over=1.0)
    training = [*steps(global_step=[float(step) for step in range(1, 150)])]
    resumed = [*steps(global_step=[float(step) for step in range(80, 250)])]
    detector = StepRegression()
    outputs = [
        (record, update_detector(detector, record))
        for record in [*training, by_steps, *training, by_steps, *training, *resumed]
    ]
    found = [(int(r.values["global_step"]), o) for r, o in outputs if isinstance(o, Finding)]
    severities = [finding.severity for step, finding in found if step == 3]

    assert severities == [None, Severity.INFO]
    assert {finding.severity for step, finding in found if step > 80} == {None}
