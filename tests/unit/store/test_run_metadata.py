"""Tests of the metadata store: the newest value of each key, limited in number and size."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace
from math import inf, nan

import pytest
from support.results import NOW, RUN, make_result

from sentinel.metrics.run_state import RunState
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.pipeline.engine import Result
from sentinel.signals.run_metadata import MAX_METADATA_CHARS, MAX_METADATA_KEYS
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.run_metadata import RunMetadataStore


@pytest.fixture
def connection(tmp_path):
    with closing(connect(tmp_path / "sentinel.db")) as opened:
        yield opened


def make_record(event=Event.METADATA, rank=WHOLE_RUN, step=1, values=None, **attributes):
    named = {name.replace("patch_", "patch/"): text for name, text in attributes.items()}
    return make_result(event, step, rank, values=values or {}, attributes=named).record


def rows(connection):
    return dict(connection.execute("select key, value from run_metadata"))


def test_each_text_and_number_has_one_row(connection):
    store = RunMetadataStore(connection)
    store.update(make_record(Event.START, framework="torch", values={"max_steps": 100.0}))
    store.update(make_record(framework="trl", values={"beta": 0.1, "global_step": 3.0}))

    assert rows(connection) == {"framework": "trl", "max_steps": 100.0, "beta": 0.1}


def test_unchanged_metadata_is_not_written_again(connection):
    store = RunMetadataStore(connection)

    assert store.update(make_record(model="qwen"))
    assert not store.update(make_record(model="qwen", step=9))
    assert connection.execute("select step from run_metadata").fetchall() == [(1,)]


def test_the_state_of_a_patch_has_a_row_per_rank(connection):
    store = RunMetadataStore(connection)
    store.update(make_record(rank=0, patch_trl="on"))
    store.update(make_record(rank=1, patch_trl="off: TypeError in on_log"))
    store.update(make_record(rank=WHOLE_RUN, patch_trl="on"))

    assert rows(connection) == {}
    assert [(r.rank, dict(r.attributes)) for r in store.to_records(RUN)] == [
        (0, {"patch/trl": "on"}),
        (1, {"patch/trl": "off: TypeError in on_log"}),
    ]


def test_a_new_attempt_deletes_the_patch_states(connection):
    store = RunMetadataStore(connection)
    store.update(make_record(Event.START, framework="torch"))
    store.update(make_record(rank=1, patch_trl="on"))
    store.update(replace(make_record(Event.START, framework="torch"), attempt=1))

    assert [r.rank for r in store.to_records(RUN)] == [WHOLE_RUN]


def test_number_and_length_of_texts_are_limited(connection):
    store = RunMetadataStore(connection)
    store.update(make_record(**{f"key{i}": "x" * 5000 for i in range(3 * MAX_METADATA_KEYS)}))

    stored = rows(connection)
    assert len(stored) == 2 * MAX_METADATA_KEYS
    assert {len(text) for text in stored.values()} == {MAX_METADATA_CHARS}


def test_nan_is_ignored_and_infinity_stored(connection):
    store = RunMetadataStore(connection)
    store.update(make_record(values={"nan": nan, "max_grad_norm": inf}))

    assert rows(connection) == {"max_grad_norm": inf}
    assert not store.update(make_record(values={"nan": nan}))


def test_a_path_that_is_not_utf_8_is_stored_escaped(connection):
    """Python represents such a path with surrogates, which SQLite does not accept."""
    store = RunMetadataStore(connection)
    record = make_record(
        output_dir="/data/caf\udce9", **{"key\udce9": "x"}, values={"n\udce9": 1.0}
    )

    assert store.update(record)
    assert not store.update(record)
    assert rows(connection)["output_dir"] == "/data/caf\\udce9"
    assert RunMetadataStore(connection).as_dict() == store.as_dict()


def test_a_restart_restores_metadata_and_patch_states(connection):
    store = RunMetadataStore(connection)
    store.update(make_record(Event.START, framework="torch", values={"max_steps": 100.0}))
    store.update(make_record(framework="trl"))
    store.update(make_record(rank=1, patch_trl="on, without Trainer.step"))

    run_state = RunState(RUN)
    for record in RunMetadataStore(connection).to_records(RUN):
        run_state.update(record)
    assert run_state.reported.texts == {"framework": "trl"}
    assert run_state.reported.settings == {"max_steps": 100.0}
    assert run_state.reported.patches == {("trl", 1): "on, without Trainer.step"}


def test_without_metadata_there_are_no_records(connection):
    assert RunMetadataStore(connection).to_records(RUN) == []


def test_the_history_stores_metadata_records_that_change_something(connection):
    history = History(connection)
    for record in (
        make_record(model="qwen"),
        make_record(model="qwen"),
        make_record(patch_trl="on"),
        make_record(model="qwen", values={"beta": 0.1}),
    ):
        history.update(Result(record))

    stored = [(r.event, dict(r.attributes), dict(r.values)) for r in history.records(RUN)]
    assert stored == [
        (Event.METADATA, {"model": "qwen"}, {}),
        (Event.METADATA, {"model": "qwen"}, {"beta": 0.1}),
    ]


def test_the_history_stores_heartbeats_with_node_values(connection):
    history = History(connection)
    history.update(make_result(Event.HEARTBEAT, values={"ranks_running": 2.0}))
    history.update(
        make_result(Event.HEARTBEAT, step=7, values={"ranks_running": 2.0, "host_cpu": 0.5})
    )

    assert [(r.event, r.time) for r in history.records(RUN)] == [(Event.HEARTBEAT, NOW + 7)]
