"""The statistics of layers in the history: stored exactly, bounded, and read as a heat map."""

from __future__ import annotations

from contextlib import closing
from math import inf, nan

import pytest
from support.layer_records import layer_record
from support.run_databases import step_record, write_records

from sentinel.model.record import Event
from sentinel.store.database import connect
from sentinel.store.history import MAX_LAYER_ROWS, History
from sentinel.store.run_reader import RunReader


def run_of(steps, **more):
    for step in steps:
        yield step_record(step, {"loss": 1.0})
        yield layer_record(
            step,
            layer_grad_norm={"b": float(step), "a": 2.0 * step},
            layer_grad_cosine={"b": nan, "a": 0.5},
            histogram={"b": [-5, step, 2]},
            **more,
        )


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sentinel.db"


def test_the_answer_has_layers_in_the_order_of_the_model_and_means_by_column(path):
    write_records(path, run_of(range(10)))

    found = RunReader(path).layers("layer_grad_norm", columns=5)

    assert found["layers"] == ["b", "a"]
    assert found["statistics"] == ["layer_grad_norm", "layer_grad_cosine"]
    assert found["x"] == [1, 3, 5, 7, 9]
    assert found["values"] == [[0.5, 2.5, 4.5, 6.5, 8.5], [1.0, 5.0, 9.0, 13.0, 17.0]]
    assert found["histograms"] == {"x": 9, "layer": {"b": [-5, 9, 2]}}


def test_values_that_are_not_finite_are_none_and_infinite_ones_are_bad(path):
    write_records(path, run_of(range(2)))
    write_records(path, [layer_record(2, layer_grad_norm={"b": inf, "a": nan})])

    assert RunReader(path).layers("layer_grad_cosine")["values"][0] == [None, None, None]
    assert RunReader(path).layers("layer_grad_norm")["values"] == [[0.0, 1.0, None], [0, 2, None]]
    assert RunReader(path).layers("layer_grad_norm")["bad"] == [[2], []]
    assert RunReader(path).layers("layer_grad_norm", columns=2)["bad"] == [[1], []]


def test_whether_layers_are_stored(path):
    write_records(path, [step_record(1, {"loss": 1.0})])
    assert not RunReader(path).has_layers()
    write_records(path, run_of([2]))
    assert RunReader(path).has_layers()


def test_a_window_holds_its_own_newest_histograms(path):
    write_records(path, run_of(range(10)))

    found = RunReader(path).layers("layer_grad_norm", start=2, end=4)

    assert found["x"] == [2, 3, 4]
    assert found["histograms"]["x"] == 4


def test_what_a_resumed_run_measures_again_replaces_the_first_values(path):
    write_records(path, run_of(range(10)))
    write_records(path, run_of(range(4, 6), attempt=1))

    assert RunReader(path).layers("layer_grad_norm")["x"] == [0, 1, 2, 3, 4, 5]


def test_a_run_without_layers_has_an_empty_answer(path):
    write_records(path, [step_record(1, {"loss": 1.0})])

    assert RunReader(path).layers("layer_grad_norm") == {
        "statistic": "layer_grad_norm",
        "statistics": [],
        "layers": [],
        "x": [],
        "values": [],
        "bad": [],
        "histograms": {"x": None, "layer": {}},
    }


def test_values_and_histograms_are_stored_exactly_and_share_a_layout(path):
    records = [*run_of(range(20))]
    write_records(path, records)

    with closing(connect(path)) as connection:
        stored = [each for each in History(connection).records("run") if each.values]
        layouts = connection.execute("select count(distinct layout) from step").fetchone()

    assert [(repr(each.values), each.attributes) for each in stored] == [
        (repr(dict(each.values)), dict(each.attributes)) for each in records
    ]
    assert layouts == (2,)


def test_layers_are_no_series_of_the_run(path):
    write_records(path, run_of(range(3)))
    reader = RunReader(path)

    assert [each["name"] for each in reader.signals()] == ["loss"]
    assert [*reader.rows_since(0)["values"]] == ["loss"]


def test_old_rows_are_farther_apart_and_their_number_is_bounded(path):
    write_records(path, (each for each in run_of(range(1500)) if each.event is Event.LAYERS))

    x = RunReader(path).layers("layer_grad_norm", columns=5000)["x"]

    assert len(x) <= MAX_LAYER_ROWS
    assert (x[0], x[-1]) == (0, 1499)
    assert x[-200:] == [*range(1300, 1500)]
    write_records(path, (each for each in run_of(range(1500, 4000)) if each.event is Event.LAYERS))
    x = RunReader(path).layers("layer_grad_norm", columns=5000)["x"]
    assert MAX_LAYER_ROWS * 3 // 4 <= len(x) <= MAX_LAYER_ROWS
    assert (x[0], x[-1]) == (0, 3999)
