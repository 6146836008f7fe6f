"""Tests of the detector checkpoint_cadence."""

from random import Random

import pytest

from sentinel.detectors.checkpoint_cadence import CheckpointCadence
from sentinel.model.finding import Clear, Finding, Severity
from sentinel.model.record import Event
from sentinel.testing import event, first_finding, update_detector


def saves(*at):
    return [event(Event.SAVE, step) for step in at]


def stepped(last, save_at):
    """Every step up to `last` as a record, each save after its step."""
    for step in range(1, last + 1):
        yield event(Event.STEP, step, global_step=float(step))
        if save_at(step):
            yield event(Event.SAVE, step)


REGULAR = tuple(range(500, 4001, 500))
STORM = tuple(range(4002, 4042, 2))


@pytest.mark.parametrize("declared", [{}, {"save_steps": 500.0}])
def test_a_storm_is_found_at_its_third_save_with_the_first_as_onset(declared):
    """500, 1000, ..., 4000, then every 2 steps: huggingface/trl#2124."""
    records = [event(Event.START, 0, **declared), *saves(*REGULAR, *STORM)]
    record, finding = first_finding(CheckpointCadence(), records)

    assert record.step == 4006
    assert finding.onset_step == 4002
    assert finding.severity is None


def test_a_storm_that_continues_is_critical():
    detector = CheckpointCadence()
    outputs = [update_detector(detector, record) for record in saves(*REGULAR, *STORM)]

    assert outputs[len(REGULAR) + 5].severity is Severity.CRITICAL


def test_passing_max_steps_is_found_at_the_first_step():
    """The cause of the storm, named one save before it is seen to be one."""
    start = event(Event.START, 0, save_steps=500.0, max_steps=4000.0)
    past = lambda step: step % 500 == 0 or (step > 4000 and step % 2 == 0)  # noqa: E731
    record, finding = first_finding(CheckpointCadence(), [start, *stepped(4020, past)])

    assert record.step == 4001
    assert "The trainer's step counter is at 4001, past the maximum of 4000" in finding.summary


def test_the_last_step_of_a_run_is_not_past_its_end():
    start = event(Event.START, 0, max_steps=1000.0)

    assert first_finding(CheckpointCadence(), [start, *stepped(1000, lambda _: False)])[0] is None


@pytest.mark.parametrize("max_steps", [-1.0, 0.0])
def test_a_run_without_an_end_has_none_to_pass(max_steps):
    start = event(Event.START, 0, max_steps=max_steps)

    assert first_finding(CheckpointCadence(), [start, *stepped(50, lambda _: False)])[0] is None


def test_single_irregular_saves_are_clear():
    """Two irregular saves between regular ones: a best model, a signal, the end of the run."""
    rng = Random(0)
    at = sorted({*range(500, 40_001, 500), *(rng.randrange(1, 40_000) for _ in range(20))})

    assert first_finding(CheckpointCadence(), saves(*at)) == (None, None)


def test_irregular_saves_must_be_twice_as_many():
    """Three by a person who saves when it looks good, and six by something else."""
    at = [4010, 4110, 4115, 4205, 4210, 4300]

    assert first_finding(CheckpointCadence(), saves(*REGULAR, *at[:3])) == (None, None)
    assert first_finding(CheckpointCadence(), saves(*REGULAR, *at))[0].step == 4300


def test_a_save_reported_by_every_rank_counts_once():
    at = [step for step in range(500, 5001, 500) for _ in range(8)]

    assert first_finding(CheckpointCadence(), saves(*at)) == (None, None)


def test_usual_frequent_saves_are_clear():
    assert first_finding(CheckpointCadence(), saves(*range(2, 400, 2))) == (None, None)


def test_a_resume_resets_the_count():
    records = [*saves(*REGULAR, 4002, 4004), event(Event.START, 4000), *saves(4006, 4500)]

    assert first_finding(CheckpointCadence(), records) == (None, None)


def test_the_storm_clears_when_saves_stop():
    detector = CheckpointCadence()
    for record in saves(*REGULAR, *STORM):
        update_detector(detector, record)

    assert isinstance(update_detector(detector, event(Event.STEP, 4100)), Finding)
    assert update_detector(detector, event(Event.STEP, 4200)) == Clear()


@pytest.mark.parametrize("kind", [Event.START, Event.METADATA])
def test_a_declared_interval_applies_once_it_is_known(kind):
    detector = CheckpointCadence()
    detector.update(event(Event.START, 0))
    detector.update(event(kind, 0, save_steps=500, max_steps=4000))

    output = detector.update(event(Event.STEP, 4001, global_step=4001.0))
    assert output.evidence["last_planned_step"] == 4000
    assert output.evidence["usual_save_interval_steps"] == 500


def test_metadata_between_saves_does_not_reset_a_storm():
    detector = CheckpointCadence()
    for step in (500, 502, 504, 506):
        detector.update(event(Event.METADATA, step, save_steps=500))
        output = detector.update(event(Event.SAVE, step))

    assert isinstance(output, Finding)
