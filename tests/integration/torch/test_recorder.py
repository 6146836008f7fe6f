"""Every record carries its step, and all values of that step."""

import random
import time
from math import inf, isnan, nan

import numpy as np
import pytest
import torch
from support.recorders import Hostile, RecordedRank

import sentinel
from sentinel.client.log_writer import LogWriter
from sentinel.model.record import Event


@pytest.fixture
def rank(tmp_path):
    return RecordedRank(tmp_path / "0-0.ring")


def test_logs_of_changing_shape_keep_names_and_values_together(rank):
    logs = [{"a": 1.0}, {"b": 2.0}, {"b": 1.0, "a": 2.0}, {"a": 3.0, "b": 4.0}, {}, {"c": 5.0}]
    for values in logs * 3:
        rank.recorder.log(values)

    assert rank.values() == logs * 3


def test_captured_and_logged_values_of_a_step_are_one_record(rank):
    rank.take_step(loss=0.5)
    rank.recorder.log({"kl": 0.1}, step=70)

    (record,) = rank.records()

    assert record.values == {"loss": 0.5, "kl": 0.1, "optimizer_steps": 1.0, "global_step": 70.0}
    assert (record.step, record.step_index) == (70, 1)


def test_a_stage_is_between_the_step_before_it_and_the_next(rank):
    rank.take_step(loss=0.5)
    rank.recorder.record_stage({"name": "hard"})
    rank.take_step(loss=0.7)
    rank.recorder.close({"outcome": "finished"})

    records = [(record.event, record.step_index) for record in rank.records()]
    assert records[:3] == [(Event.STEP, 1), (Event.STAGE, 1), (Event.STEP, 2)]
    (stage,) = [record for record in rank.records() if record.event is Event.STAGE]
    assert (stage.attributes, stage.values) == ({"name": "hard"}, {"stage_number": 1.0})


def test_captured_values_without_a_log_are_written_at_the_next_step_or_at_the_end(rank):
    rank.take_step(loss=0.5)
    rank.take_step(loss=0.4)
    assert rank.values() == [{"loss": 0.5, "optimizer_steps": 1.0}]

    rank.recorder.close({"outcome": "finished"})

    assert [r.event for r in rank.records()] == [Event.STEP, Event.STEP, Event.STOP]


def test_the_header_shows_a_step_at_once(rank):
    rank.take_step(loss=0.5)

    header = rank.reader.read_header()

    assert (header.last_step, header.last_step_index) == (1, 1)
    assert time.time() - header.last_time < 60
    assert rank.poll_count == 1


def test_step_numbers_given_occasionally_are_continued_by_optimizer_steps(rank):
    for turn in range(1, 7):
        rank.take_step(loss=1.0)
        if turn % 3 == 1:
            rank.recorder.log({"kl": 0.1}, step=99 + turn)
    rank.recorder.close({})

    records = rank.records()[:-1]

    assert [record.step for record in records] == [100, 101, 102, 103, 104, 105]
    assert [record.step_index for record in records] == [1, 2, 3, 4, 5, 6]
    assert ["global_step" in record.values for record in records] == [True, False, False] * 2


def test_a_log_before_its_optimizer_step_belongs_to_that_step(rank):
    """A value logged between backward and step belongs to the coming step."""
    for turn in range(3):
        rank.recorder.clock.in_progress = True
        rank.recorder.log({"kl": float(turn)}, step=turn)
        rank.recorder.record_step({"loss": float(turn)}, {})
    rank.recorder.close({})

    by_step_index = {}
    for record in rank.records()[1:-1]:
        by_step_index.setdefault(record.step_index, {}).update(record.values)

    assert [(values["loss"], values.get("kl", 0.0)) for values in by_step_index.values()] == [
        (0.0, 0.0),
        (1.0, 1.0),
        (2.0, 2.0),
    ]
    assert [record.step for record in rank.records()[:-1]] == [0, 0, 1, 1, 2, 2]


def test_without_an_optimizer_a_growing_step_number_is_the_step_index(rank):
    for step in (10, 10, 20, 20, 15):
        rank.recorder.log({"x": 1.0}, step=step)

    assert [record.step_index for record in rank.records()] == [10, 10, 20, 20, 21]
    assert [record.step for record in rank.records()] == [10, 10, 20, 20, 15]


def test_a_log_before_the_first_step_does_not_shift_the_step_index(rank):
    """Only rank 0 logs before training; its step indices must still match the other ranks."""
    rank.recorder.log({"eval_loss": 1.0}, step=0)
    rank.take_step(loss=0.5)

    assert rank.recorder.clock.step_index == 1


def test_a_logged_value_replaces_a_captured_one_of_the_same_name(rank):
    for _ in range(2):
        rank.take_step(loss=0.5)
        rank.recorder.log({"loss": 0.25}, step=1)

    assert [values["loss"] for values in rank.values()] == [0.25, 0.25]


def test_a_logged_loss_does_not_hide_a_raw_loss_that_is_not_finite(rank):
    """Some trainers log 0.0 where the loss was NaN."""
    for loss in (0.5, nan, 0.5):
        rank.take_step(loss=loss)
        rank.recorder.log({"loss": 0.0}, step=1)

    assert [isnan(values["loss"]) for values in rank.values()] == [False, True, False]


def test_a_weight_is_recorded_with_the_values(rank):
    rank.recorder.log({"x": 1.0}, weight=32)
    for weight in ("many", 0, -1, nan, inf):
        rank.recorder.log({"x": 1.0}, weight=weight)

    assert [values["weight"] for values in rank.values()] == [32.0, 1.0, 1.0, 1.0, 1.0, 1.0]
    assert rank.drops() == {"type": 1, "range": 4}


def test_an_invalid_step_does_not_lose_the_values(rank):
    steps = ["7", 1.5, nan, Hostile(), 2**80, [1], True]
    for step in steps:
        rank.recorder.log({"x": 1.0}, step=step)

    assert rank.values() == [{"x": 1.0}] * len(steps)


@pytest.mark.parametrize("step", [np.int64(7), torch.tensor(7), 7.0])
def test_a_step_may_be_any_integral_number(rank, step):
    rank.recorder.log({"x": 1.0}, step=step)

    assert rank.records()[0].step == 7


def test_overhead_in_the_training_thread_is_measured(rank):
    for _ in range(100):
        rank.recorder.log({"x": 1.0})

    assert 0 < rank.reader.read_header().overhead_ns < 1e9


def test_events_separate_numbers_and_texts(rank):
    rank.recorder.record_event(Event.SAVE, 500, {"path": "/ckpt", "bytes": 10, "odd": None})

    (record,) = rank.records()

    assert (record.event, record.step) == (Event.SAVE, 500)
    assert record.values == {"bytes": 10.0, "global_step": 500.0}
    assert record.attributes == {"path": "/ckpt"}
    assert rank.drops() == {"type": 1}


def test_outside_a_run_the_api_does_nothing(recorded):
    sentinel.log({"x": 1.0}, step=1)
    sentinel.mark("save", step=1)
    with sentinel.phase("eval"):
        pass

    assert recorded() == {}


def test_the_fast_path_writes_the_same_records_as_the_slow_path(tmp_path, monkeypatch):
    """The same random run is recorded twice; only times may differ."""
    rng = random.Random(3)
    actions = [
        (rng.choice("lLlLsb"), rng.choice([1, 1, 1, 0, 7]), rng.random()) for _ in range(600)
    ]
    logs = [{"a": 1.0, "b": 2.0}, {"a": 3.0, "b": 4}, {"b": 1.0, "a": nan}, {"c": 1.0, "loss": 2.0}]

    def play(rank):
        step = 0
        for kind, stride, number in actions:
            step += stride
            if kind == "s":
                rank.take_step(loss=number, grad_norm=1.0)
            elif kind == "b":
                rank.recorder.clock.in_progress = True
            else:
                values = logs[0] if kind == "l" else logs[int(number * 4)]
                rank.recorder.log(values, step=step if number < 0.9 else None)
        rank.recorder.close({})
        return [
            (r.event, r.step, r.step_index, {name: str(v) for name, v in r.values.items()})
            for r in rank.records()
        ]

    short = play(RecordedRank(tmp_path / "short.ring"))
    monkeypatch.setattr(LogWriter, "write_fast", lambda *_: False)

    assert play(RecordedRank(tmp_path / "long.ring")) == short
