"""JSON columns: which lists of an object are the rows of a training."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest

from sentinel.model.record import Event
from sentinel.readers import json_columns
from sentinel.readers.format_detection import find_reader, open_log


def write(path, value):
    path.write_text(json.dumps(value, indent=2))
    return path


def series(records, name):
    return [r.values[name] for r in records if r and r.event is Event.STEP and name in r.values]


def test_the_history_of_keras_is_read(tmp_path):
    path = write(tmp_path / "history.json", {"loss": [2.5, 2.0, 1.5], "val_loss": [2.6, 2.2, 2.1]})

    records = [*open_log(path)]
    assert series(records, "loss") == [2.5, 2.0, 1.5]
    assert series(records, "eval_loss") == [2.6, 2.2, 2.1]


def test_the_columns_are_the_lists_of_the_commonest_length(tmp_path):
    value = {"config": {"range": [0.0, 2.5]}, "loss": [3.0, 2.0, 1.0], "acc": [0.1, None, 0.3]}
    path = write(tmp_path / "log.json", value | {"names": ["a", "b", "c"]})

    assert json_columns.read_rows(path) == [
        {"loss": 3.0, "acc": 0.1},
        {"loss": 2.0, "acc": None},
        {"loss": 1.0, "acc": 0.3},
    ]


@pytest.mark.parametrize("value", [{"lr": 0.1}, {"a": ["x", "y"]}, {"a": [1]}, {"a": {"b": 1}}])
def test_other_objects_are_not_read(tmp_path, value):
    path = write(tmp_path / "config.json", value)

    assert not json_columns.can_read(path, path.read_bytes())


def test_rows_that_a_rewritten_file_adds_are_followed(tmp_path):
    path = write(tmp_path / "history.json", {"loss": [2.5, 2.0]})
    following = replace(open_log(path, is_live=True)).follow()
    seen = []
    for count in (2, 3, 4):
        write(path, {"loss": [2.5, 2.0, 1.5, 1.0][:count]})
        while (record := next(following)) is not None:
            seen.append(record)
    path.write_text('{"loss": [2.5, ')
    assert next(following) is None

    assert series(seen, "loss") == [2.5, 2.0, 1.5, 1.0]
    assert find_reader(write(path, {"loss": [1.0, 2.0]}))[0] is json_columns


def test_columns_after_a_number_are_read(tmp_path):
    path = write(tmp_path / "log.json", {"n_episodes": 3, "reward": [1.0, 2.0, 3.0]})

    assert series([*open_log(path)], "reward") == [1.0, 2.0, 3.0]


def test_the_longest_list_of_objects_with_a_step_is_read(tmp_path):
    training = [{"episode": n, "reward": float(n), "tag": "a"} for n in range(4)]
    value = {"config": {"seed": 1}, "training": training, "validation": training[:2]}
    path = write(tmp_path / "log.json", value)

    assert series([*open_log(path)], "reward") == [0.0, 1.0, 2.0, 3.0]
    other = write(tmp_path / "data.json", {"rows": [{"text": "a", "label": 0}] * 3})
    assert not json_columns.can_read(other, other.read_bytes())
    state = write(tmp_path / "trainer_state.json", {"best_step": 1, "log_history": training})
    assert not json_columns.can_read(state, state.read_bytes())


@pytest.mark.parametrize(
    "value",
    [
        {"lr": 0.001, "betas": [0.9, 0.999]},
        {"num_layers": 12, "image_size": [224, 224]},
        {"step": 1, "loss": 2.0, "lr": [0.001, 0.001]},
        {"epoch": 0, "accuracy": [0.5, 0.6]},
    ],
    ids=["hyper-parameters", "a model", "the first row of a log", "the first epoch of a log"],
)
def test_settings_and_single_rows_are_no_columns(tmp_path, value):
    path = write(tmp_path / "a.json", value)

    assert not json_columns.can_read(path, path.read_bytes())
