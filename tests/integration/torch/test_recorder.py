"""Recorder: every record says which step it is of, and all that is known of it."""

import random
import time
from math import inf, isnan, nan

import numpy as np
import pytest
import torch
from support.recorders import Evil, Told

import sentinel
from sentinel.client.recorder import Recorder
from sentinel.model.record import Event


@pytest.fixture
def hook(tmp_path):
    return Told(tmp_path / "0-0.ring")


def test_logs_of_changing_shape_keep_names_and_values_together(hook):
    logs = [{"a": 1.0}, {"b": 2.0}, {"b": 1.0, "a": 2.0}, {"a": 3.0, "b": 4.0}, {}, {"c": 5.0}]
    for values in logs * 3:
        hook.recorder.log(values)

    assert hook.values() == logs * 3


def test_captured_and_logged_values_of_a_step_are_one_record(hook):
    hook.record_step(loss=0.5)
    hook.recorder.log({"kl": 0.1}, step=70)

    (record,) = hook.records()

    assert record.values == {"loss": 0.5, "kl": 0.1, "optimizer_steps": 1.0, "global_step": 70.0}
    assert (record.step, record.step_index) == (70, 1)


def test_captured_values_leave_without_a_log_at_the_next_step_and_at_the_end(hook):
    hook.record_step(loss=0.5)
    hook.record_step(loss=0.4)
    assert hook.values() == [{"loss": 0.5, "optimizer_steps": 1.0}]

    hook.recorder.close({"outcome": "finished"})

    assert [r.event for r in hook.records()] == [Event.STEP, Event.STEP, Event.STOP]


def test_the_header_shows_a_step_at_once(hook):
    hook.record_step(loss=0.5)

    header = hook.reader.read_header()

    assert (header.last_step, header.last_beat) == (1, 1)
    assert time.time() - header.last_time < 60
    assert hook.ticks == 1


def test_numbers_given_now_and_then_are_carried_on_by_optimizer_steps(hook):
    for turn in range(1, 7):
        hook.record_step(loss=1.0)
        if turn % 3 == 1:
            hook.recorder.log({"kl": 0.1}, step=99 + turn)
    hook.recorder.close({})

    records = hook.records()[:-1]

    assert [record.step for record in records] == [100, 101, 102, 103, 104, 105]
    assert [record.step_index for record in records] == [1, 2, 3, 4, 5, 6]
    assert ["global_step" in record.values for record in records] == [True, False, False] * 2


def test_a_log_before_its_optimizer_step_belongs_to_that_step(hook):
    """backward, log, step: what is logged in between is of the step to come."""
    for turn in range(3):
        hook.recorder.clock.in_progress = True
        hook.recorder.log({"kl": float(turn)}, step=turn)
        hook.recorder.record_step({"loss": float(turn)}, {})
    hook.recorder.close({})

    by_beat = {}
    for record in hook.records()[1:-1]:
        by_beat.setdefault(record.step_index, {}).update(record.values)

    assert [(values["loss"], values.get("kl", 0.0)) for values in by_beat.values()] == [
        (0.0, 0.0),
        (1.0, 1.0),
        (2.0, 2.0),
    ]
    assert [record.step for record in hook.records()[:-1]] == [0, 0, 1, 1, 2, 2]


def test_without_optimizer_a_new_number_is_the_beat_as_far_as_it_grows(hook):
    for step in (10, 10, 20, 20, 15):
        hook.recorder.log({"x": 1.0}, step=step)

    assert [record.step_index for record in hook.records()] == [10, 10, 20, 20, 21]
    assert [record.step for record in hook.records()] == [10, 10, 20, 20, 15]


def test_one_word_before_the_first_step_does_not_shift_a_rank(hook):
    """Only rank 0 logs before training; its beats must still be those of the others."""
    hook.recorder.log({"eval_loss": 1.0}, step=0)
    hook.record_step(loss=0.5)

    assert hook.recorder.clock.step_index == 1


def test_the_users_own_word_stands_beside_a_captured_one_of_that_name(hook):
    for _ in range(2):
        hook.record_step(loss=0.5)
        hook.recorder.log({"loss": 0.25}, step=1)

    assert [values["loss"] for values in hook.values()] == [0.25, 0.25]


def test_a_raw_loss_that_is_not_finite_is_not_hidden_by_a_logged_one(hook):
    """Some trainers show 0.0 where the loss was NaN."""
    for loss in (0.5, nan, 0.5):
        hook.record_step(loss=loss)
        hook.recorder.log({"loss": 0.0}, step=1)

    assert [isnan(values["loss"]) for values in hook.values()] == [False, True, False]


def test_a_weight_travels_with_the_values(hook):
    hook.recorder.log({"x": 1.0}, weight=32)
    for weight in ("many", 0, -1, nan, inf):
        hook.recorder.log({"x": 1.0}, weight=weight)

    assert [values["weight"] for values in hook.values()] == [32.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert hook.drops() == {"type": 1, "range": 4}


def test_a_step_that_is_no_number_does_not_cost_the_values(hook):
    steps = ["7", 1.5, nan, Evil(), 2**80, [1], True]
    for step in steps:
        hook.recorder.log({"x": 1.0}, step=step)

    assert hook.values() == [{"x": 1.0}] * len(steps)


@pytest.mark.parametrize("step", [np.int64(7), torch.tensor(7), 7.0])
def test_a_step_may_be_any_whole_number(hook, step):
    hook.recorder.log({"x": 1.0}, step=step)

    assert hook.records()[0].step == 7


def test_time_in_the_training_thread_is_accounted_for(hook):
    for _ in range(100):
        hook.recorder.log({"x": 1.0})

    assert 0 < hook.reader.read_header().overhead_ns < 1e9


def test_marks_and_facts_keep_numbers_and_texts_apart(hook):
    hook.recorder.record_event(Event.SAVE, 500, {"path": "/ckpt", "bytes": 10, "odd": None})

    (record,) = hook.records()

    assert (record.event, record.step) == (Event.SAVE, 500)
    assert record.values == {"bytes": 10.0, "global_step": 500.0}
    assert record.attributes == {"path": "/ckpt"}
    assert hook.drops() == {"type": 1}


def test_outside_a_run_every_verb_is_silent(told):
    sentinel.log({"x": 1.0}, step=1)
    sentinel.mark("save", step=1)
    with sentinel.phase("eval"):
        pass

    assert told() == {}


def test_the_shorter_way_tells_exactly_what_the_longer_one_does(tmp_path, monkeypatch):
    """The same made-up run, told twice; only the moments may differ."""
    rng = random.Random(3)
    turns = [(rng.choice("lLlLsb"), rng.choice([1, 1, 1, 0, 7]), rng.random()) for _ in range(600)]
    logs = [{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4}, {"b": 1.0, "a": nan}, {"c": 1.0, "loss": 2.0}]

    def play(hook):
        step = 0
        for kind, stride, number_ in turns:
            step += stride
            if kind == "s":
                hook.record_step(loss=number_, grad_norm=1.0)
            elif kind == "b":
                hook.recorder.clock.in_progress = True
            else:
                which = logs[0] if kind == "l" else logs[int(number_ * 4)]
                hook.recorder.log(which, step=step if number_ < 0.9 else None)
        hook.recorder.close({})
        return [
            (r.event, r.step, r.step_index, {name: str(v) for name, v in r.values.items()})
            for r in hook.records()
        ]

    short = play(Told(tmp_path / "short.ring"))
    monkeypatch.setattr(Recorder, "_log_fast", lambda *_: False)

    assert play(Told(tmp_path / "long.ring")) == short
