"""The seconds of all activities sum up to the wall time of the run."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.model.record import STATE_LOADED_KEY, WHOLE_RUN, Event, Record
from sentinel.pipeline.time_use import ACTIVITIES, TimeUse


class Course:
    """A run whose clock advances with each record."""

    def __init__(self, start=1000.0):
        self.use, self.now, self.start = TimeUse(), start, start
        self.is_stalled = False

    def record(self, event, after, step=0, values=None, **attributes):
        self.now += after
        record = Record("run", WHOLE_RUN, step, self.now, event, values or {}, attributes)
        self.use.update(record, is_stalled=self.is_stalled)

    def steps(self, first, last, seconds=2.0):
        for step in range(first, last + 1):
            self.record(Event.STEP, seconds, step)

    @property
    def spent(self):
        return {name: seconds for name, seconds in self.use.seconds.items() if seconds}


@pytest.fixture
def course():
    started = Course()
    started.record(Event.START, 0.0)
    return started


def test_steps_after_the_first_are_productive(course):
    course.record(Event.STEP, 30.0, 1)
    course.steps(2, 11)

    assert course.spent == {"startup": 30.0, "productive": 20.0}


@pytest.mark.parametrize(
    ("event", "activity"), [(Event.EVAL, "evaluation"), (Event.SAVE, "checkpoint")]
)
@pytest.mark.parametrize("is_step_first", [True, False])
def test_the_time_before_an_event_is_the_time_of_that(course, event, activity, is_step_first):
    """Frameworks report the step before it, loops that log at the end of a step after it."""
    course.steps(1, 20)
    course.record(event, 50.0 if is_step_first else 52.0, 20)
    course.steps(21, 21, seconds=2.0 if is_step_first else 0.01)

    expected = {"startup": 2.0, "productive": 40.0, activity: 50.0}
    assert course.spent == pytest.approx(expected, abs=0.02)


def test_an_evaluation_and_a_checkpoint_of_one_step_are_separate(course):
    course.steps(1, 5)
    course.record(Event.EVAL, 7.0, 5)
    course.record(Event.SAVE, 3.0, 5)
    course.steps(6, 6)

    assert course.spent == {
        "startup": 2.0, "productive": 10.0, "evaluation": 7.0, "checkpoint": 3.0,
    }  # fmt: skip


@pytest.mark.parametrize(
    ("name", "activity"),
    [
        ("eval", "evaluation"),
        ("on_Validation", "evaluation"),
        ("save_model", "checkpoint"),
        ("rollout", "productive"),
        ("retrieval", "productive"),
        ("latest_weights", "productive"),
    ],
)
def test_a_declared_phase_is_measured(course, name, activity):
    course.steps(1, 3)
    course.record(Event.PHASE, 0.5, 3, name=name, edge="begin")
    course.record(Event.PHASE, 7.0, 3, name=name, edge="end")
    course.record(Event.STEP, 1.5, 4)

    expected = {"startup": 2.0, "productive": 6.0}
    expected[activity] = expected.get(activity, 0.0) + 7.0
    assert course.spent == expected


def test_a_phase_within_an_evaluation_is_part_of_it(course):
    course.steps(1, 3)
    course.record(Event.PHASE, 0.5, 3, name="eval", edge="begin")
    course.record(Event.PHASE, 4.0, 3, name="generate", edge="begin")
    course.record(Event.PHASE, 2.0, 3, name="generate", edge="end")
    course.record(Event.PHASE, 1.0, 3, name="save", edge="begin")
    course.record(Event.PHASE, 8.0, 3, name="save", edge="end")
    course.record(Event.PHASE, 0.5, 3, name="eval", edge="end")
    course.record(Event.STEP, 1.5, 4)

    assert course.spent == {
        "startup": 2.0, "productive": 6.0, "evaluation": 7.5, "checkpoint": 8.0,
    }  # fmt: skip


def test_a_phase_that_began_before_the_first_record_is_measured(course):
    course.steps(1, 3)
    course.record(Event.PHASE, 7.0, 3, name="eval", edge="end")

    assert course.spent["evaluation"] == 7.0


def test_a_stall_counts_from_the_last_step_on(course):
    course.steps(1, 5)
    course.record(Event.HEARTBEAT, 40.0)
    assert course.spent == {"startup": 2.0, "productive": 8.0}
    course.is_stalled = True
    course.record(Event.HEARTBEAT, 1.0)
    course.record(Event.HEARTBEAT, 5.0)
    assert course.spent == {"startup": 2.0, "productive": 8.0, "stalled": 46.0}

    course.is_stalled = False
    course.steps(6, 6)
    assert course.spent == {"startup": 2.0, "productive": 10.0, "stalled": 46.0}


def test_steps_that_are_done_again_after_a_restart_are_lost(course):
    course.steps(1, 20)
    course.record(Event.STOP, 1.0, outcome="died")
    course.record(Event.START, 60.0)
    course.steps(11, 25)

    assert course.spent == {
        "startup": 4.0, "productive": 19 * 2.0 + 5 * 2.0, "lost": 1.0 + 9 * 2.0, "down": 60.0,
    }  # fmt: skip


def test_a_state_that_is_loaded_within_an_attempt_is_a_rollback(course):
    course.steps(1, 10)
    course.record(Event.METADATA, 0.0, values={STATE_LOADED_KEY: 5.0})
    course.steps(6, 11)

    assert course.spent == {"startup": 2.0, "productive": 20.0, "lost": 10.0}


def test_steps_of_one_number_are_not_lost(course):
    for step in (1, 1, 2, 2, 1, 2):
        course.record(Event.STEP, 2.0, step)

    assert course.spent == {"startup": 2.0, "productive": 10.0}


def test_another_training_may_begin_at_its_first_step(course):
    course.steps(1, 10)
    course.record(Event.STOP, 0.0)
    course.record(Event.START, 5.0)
    course.record(Event.TRAINING, 0.0)
    course.steps(1, 10)

    assert "lost" not in course.spent


def test_records_of_single_ranks_change_nothing(course):
    course.steps(1, 2)
    course.use.update(Record("run", 3, 9, course.now + 5.0), is_stalled=False)

    assert course.spent == {"startup": 2.0, "productive": 2.0}


EVENTS = [Event.STEP, Event.EVAL, Event.SAVE, Event.HEARTBEAT, Event.START, Event.STOP]


@given(
    st.lists(
        st.tuples(st.sampled_from(EVENTS), st.floats(-1.0, 100.0), st.integers(0, 9), st.booleans())
    )
)
def test_the_sum_is_the_wall_time_and_no_counter_decreases(records):
    course = Course()
    course.record(Event.START, 0.0)
    latest = course.now
    for event, after, step, is_stalled in records:
        before = dict(course.use.seconds)
        course.is_stalled = is_stalled
        course.record(event, after, step)
        latest = max(latest, course.now)
        assert all(course.use.seconds[name] >= before[name] for name in ACTIVITIES)
    course.now = latest
    course.record(Event.STOP, 0.0)

    assert sum(course.use.seconds.values()) == pytest.approx(latest - course.start)
