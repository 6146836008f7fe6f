"""Facts: the newest word of a run on each key, kept within bounds and found again."""

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


def told(event=Event.METADATA, rank=WHOLE_RUN, step=1, values=None, **facts):
    named = {name.replace("tap_", "patch/"): text for name, text in facts.items()}
    return make_result(event, step, rank, values=values or {}, facts=named).record


def rows(connection):
    return dict(connection.execute("select key, value from run_metadata"))


def test_texts_and_numbers_of_starts_and_facts_are_a_row_each(connection):
    facts = RunMetadataStore(connection)
    facts.update(told(Event.START, framework="torch", values={"max_steps": 100.0}))
    facts.update(told(framework="trl", values={"beta": 0.1, "global_step": 3.0}))

    assert rows(connection) == {"framework": "trl", "max_steps": 100.0, "beta": 0.1}


def test_what_is_no_news_is_not_written_again(connection):
    """Every rank says the same."""
    facts = RunMetadataStore(connection)

    assert facts.update(told(model="qwen"))
    assert not facts.update(told(model="qwen", step=9))
    assert connection.execute("select step from run_metadata").fetchall() == [(1,)]


def test_how_a_tap_is_belongs_to_its_rank(connection):
    facts = RunMetadataStore(connection)
    facts.update(told(rank=0, tap_trl="on"))
    facts.update(told(rank=1, tap_trl="off: TypeError in on_log"))
    facts.update(told(rank=WHOLE_RUN, tap_trl="on"))

    assert rows(connection) == {}
    assert [(r.rank, dict(r.attributes)) for r in facts.to_records(RUN)] == [
        (0, {"patch/trl": "on"}),
        (1, {"patch/trl": "off: TypeError in on_log"}),
    ]


def test_a_new_attempt_puts_its_own_taps_in(connection):
    facts = RunMetadataStore(connection)
    facts.update(told(Event.START, framework="torch"))
    facts.update(told(rank=1, tap_trl="on"))
    facts.update(replace(told(Event.START, framework="torch"), attempt=1))

    assert [r.rank for r in facts.to_records(RUN)] == [WHOLE_RUN]


def test_a_flood_is_kept_within_bounds(connection):
    facts = RunMetadataStore(connection)
    facts.update(told(**{f"key{i}": "x" * 5000 for i in range(3 * MAX_METADATA_KEYS)}))

    kept = rows(connection)
    assert len(kept) == 2 * MAX_METADATA_KEYS
    assert {len(text) for text in kept.values()} == {MAX_METADATA_CHARS}


def test_odd_numbers_are_no_trouble(connection):
    facts = RunMetadataStore(connection)
    facts.update(told(values={"nan": nan, "max_grad_norm": inf}))

    assert rows(connection) == {"max_grad_norm": inf}
    assert not facts.update(told(values={"nan": nan}))


def test_a_path_that_is_no_utf_8_is_kept(connection):
    """As Python gives it, from a command line or a folder; a refusal would end the agent."""
    facts = RunMetadataStore(connection)
    odd = told(output_dir="/data/caf\udce9", **{"key\udce9": "x"}, values={"n\udce9": 1.0})

    assert facts.update(odd)
    assert not facts.update(odd)
    assert rows(connection)["output_dir"] == "/data/caf\\udce9"
    assert RunMetadataStore(connection).as_dict() == facts.as_dict()


def test_the_next_agent_shows_the_run_as_it_was_known(connection):
    """The newest of each key, and each rank's taps."""
    facts = RunMetadataStore(connection)
    facts.update(told(Event.START, framework="torch", values={"max_steps": 100.0}))
    facts.update(told(framework="trl"))
    facts.update(told(rank=1, tap_trl="on, without Trainer.step"))

    now = RunState(RUN)
    for record in RunMetadataStore(connection).to_records(RUN):
        now.update(record)
    assert now.reported.texts == {"framework": "trl"}
    assert now.reported.settings == {"max_steps": 100.0}
    assert now.reported.patches == {("trl", 1): "on, without Trainer.step"}


def test_nothing_said_is_nothing_shown(connection):
    assert RunMetadataStore(connection).to_records(RUN) == []


def test_the_history_holds_facts_where_they_were_news(connection):
    """A later reader sees them in order, and not once for each rank."""
    history = History(connection)
    for record in (
        told(model="qwen"),
        told(model="qwen"),
        told(tap_trl="on"),
        told(model="qwen", values={"beta": 0.1}),
    ):
        history.update(Result(record))

    kept = [(r.event, dict(r.attributes), dict(r.values)) for r in history.records(RUN)]
    assert kept == [
        (Event.METADATA, {"model": "qwen"}, {}),
        (Event.METADATA, {"model": "qwen"}, {"beta": 0.1}),
    ]


def test_the_history_holds_the_ticks_that_tell_of_the_machine(connection):
    history = History(connection)
    history.update(make_result(Event.HEARTBEAT, values={"ranks_running": 2.0}))
    history.update(make_result(Event.HEARTBEAT, step=7, values={"ranks_running": 2.0, "host_cpu": 0.5}))

    assert [(r.event, r.time) for r in history.records(RUN)] == [(Event.HEARTBEAT, NOW + 7)]


def test_a_database_of_before_there_were_facts_gets_their_table(tmp_path):
    path = tmp_path / "old.db"
    with closing(connect(path)) as old:
        old.executescript("drop view facts; drop table fact; pragma user_version=1")
    with closing(connect(path)) as opened:
        RunMetadataStore(opened).update(told(model="qwen"))
        assert rows(opened) == {"model": "qwen"}
