"""Tests of the cause step_counted_twice."""

from __future__ import annotations

import numpy as np
import pytest
from support.diagnoses import diagnose_run
from support.rloo_0_12 import check_notifications, read_records

from sentinel.model.notification import NotificationReason
from sentinel.model.record import Event
from sentinel.testing import event, steps

TRL = {"framework": "trl", "algorithm": "rloo", "save_steps": 500.0, "max_steps": 4000.0}


def doubled_from(step, count=60):
    """A counter that advances by 2 per update from `step` on, with a save at each step."""
    counts = [float(n) for n in range(1, step)] + [float(step + 2 * n) for n in range(count)]
    time = np.arange(len(counts))
    losses = (
        3.0 * (1 + time / 50) ** -0.4 * np.random.default_rng(0).lognormal(0, 0.05, len(time))
    ).tolist()
    updates = [float(n) for n in range(1, len(counts) + 1)]
    for record in steps(global_step=counts, optimizer_steps=updates, loss=losses):
        yield record
        now = int(record.values["global_step"])
        if now % 500 == 0 or now > step:
            yield event(Event.SAVE, now, time=record.time, global_step=float(now))


def test_stride_and_saves_are_one_case():
    replay = diagnose_run(doubled_from(1700), TRL)

    assert replay.causes == ["step_counted_twice"]
    assert [notification.reason for notification in replay.notifications][:1] == [
        NotificationReason.OPENED
    ]
    (case,) = replay.cases.values()
    detectors = {case.incident.key.detector, *(each.key.detector for each in case.others)}
    assert {"step_stride", "checkpoint_cadence"} <= detectors
    assert "2124" in case.diagnosis.remedy
    assert "save_steps" not in case.diagnosis.remedy, "a longer interval changes nothing"


def test_the_remedy_stops_before_the_step_from_which_every_step_is_saved():
    first = diagnose_run(doubled_from(1700), TRL).notifications[0]

    assert first.diagnosis.remedy == (
        "Upgrade TRL, or look for a second place that increments the step counter, such as a "
        "callback that adds to `state.global_step`: huggingface/trl issue 2124 was this. Stop the "
        "run before step 4000 (`max_steps`): from then on every step is saved, whatever the save "
        "interval is. To run it as it is, set the checkpoint limit (`save_total_limit`) or "
        '`save_strategy="no"`.'
    )


def test_a_run_past_its_last_step_is_stopped_now():
    metadata = {"framework": "transformers", "max_steps": 1650.0}
    replay = diagnose_run(doubled_from(1700), metadata)
    (remedy,) = {
        case.diagnosis.remedy
        for case in replay.cases.values()
        if case.diagnosis is not None and case.diagnosis.cause == "step_counted_twice"
    }

    assert "Stop the run now: since step 1650 (`max_steps`) every step is saved" in remedy
    assert remedy.endswith("or a higher `max_steps`.")


def test_a_loop_that_ends_at_its_last_step_needs_a_later_one():
    first = diagnose_run(doubled_from(1700), TRL | {"algorithm": "sft"}).notifications[0]

    assert first.diagnosis.remedy.endswith(
        "Until then the run ends at step 4000 (`max_steps`) with too few updates: to run it as it "
        "is, raise `max_steps` by the same factor."
    )


def test_the_recorded_training_of_rloo_is_reported_with_a_remedy_that_helps():
    check_notifications(read_records())


def test_other_frameworks_have_a_remedy_without_settings():
    notifications = diagnose_run(doubled_from(1700), {}).notifications
    remedies = [each.diagnosis.remedy for each in notifications if each.diagnosis]

    assert remedies
    assert not any("save_strategy" in remedy for remedy in remedies)


def test_it_is_diagnosed_at_the_first_wrong_strides():
    first = diagnose_run(doubled_from(1700), TRL).notifications[0]

    assert first.diagnosis.cause == "step_counted_twice"
    assert 1700 < first.incident.onset_step <= 1702
    assert first.step <= 1708


def logged_saves(*, interval, first=4000):
    """A log of saves only: usual ones to step 4000, and frequent ones from `first` on."""
    saves = {*range(500, 4001, 500), *range(first + interval, first + 12 * interval, interval)}
    for step in range(1, max(saves) + 10):
        if step % 10 == 0:
            yield next(steps(loss=[3.0 * step**-0.1], first=step))
        if step in saves:
            yield event(Event.SAVE, step)


@pytest.mark.parametrize(
    "metadata", [{}, {"framework": "transformers", "save_steps": 500.0, "max_steps": 4000.0}]
)
def test_a_log_shows_it_by_saves_two_steps_apart_from_the_last_step_on(metadata):
    assert diagnose_run(logged_saves(interval=2), metadata).causes == ["step_counted_twice"]


@pytest.mark.parametrize(("interval", "first"), [(1, 4000), (2, 3700)])
def test_frequent_saves_of_another_pattern_have_another_cause(interval, first):
    assert diagnose_run(logged_saves(interval=interval, first=first)).causes == [""]
