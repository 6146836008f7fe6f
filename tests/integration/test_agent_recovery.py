"""Agent: what was not stored did not happen, and is judged again by the next agent."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.rank_processes import ranks

from sentinel.agent.main import Agent
from sentinel.causes._evidence import symptom_evidence
from sentinel.config.settings import load_settings
from sentinel.model.record import Event
from sentinel.store.database import connect
from sentinel.transport.paths import run_dir

LOSSES = [1.0] * 10 + [float("nan")] * 10


@pytest.fixture(autouse=True)
def places(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.chdir(tmp_path)


def agent(**settings):
    sinks = {"webhook": {"url": "http://127.0.0.1:9/nobody"}}
    return Agent(
        "live", load_settings({"linger_seconds": 0.0, "port": 0, "sinks": sinks, **settings})
    )


def queued():
    with closing(connect(run_dir("live") / "sentinel.db")) as database:
        return database.execute("select count(*) from outbox").fetchone()[0]


def test_a_turn_that_could_not_be_stored_is_judged_again_by_the_next_agent(monkeypatch):
    """Else the incident would be known and its page would not exist."""
    with ranks() as begin:
        begin(0, world=1, steps=20, values={"loss": LOSSES})
        first = agent()

        def full(_):
            raise sqlite3.OperationalError("database or disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(first.processor.journal, "place", full)
            with pytest.raises(sqlite3.OperationalError):
                first.serve()
        assert queued() == 0

        begin(0, world=1, steps=1, attempt=1, ending="finished")
        second = agent()
        monkeypatch.setattr(second, "_over", lambda: second.source.attempt == 1)
        second.serve()
        assert queued() > 0


class Held:
    """A head that would wait for another node to speak before it tells why a rank fell."""

    final = due = over = False
    hub = SimpleNamespace(stop=lambda: None)

    def turn(self, records):
        fall = {} if self.final else {"failure_origin": "undecided"}
        return [
            replace(record, facts={**record.facts, **fall})
            if record.event is Event.HEARTBEAT
            else record
            for record in records
        ]

    def keep(self):
        pass

    kept = keep


def test_what_waits_for_other_nodes_is_told_by_an_agent_that_is_ended(monkeypatch):
    with ranks() as begin:
        begin(0, world=1, steps=20, ending="exception")
        ended = agent()
        ended.cluster_role.head = Held()
        monkeypatch.setattr(ended.cluster_role, "_decide", lambda _: None)
        seen_by_turns = []

        def after_some_turns():
            seen_by_turns.append(queued())
            if len(seen_by_turns) == 4:
                ended.stop_requested.set()

        monkeypatch.setattr(ended, "_over", after_some_turns)
        ended.serve()

        assert seen_by_turns == [0] * 4
        assert queued() == 1


def test_a_database_that_is_in_use_is_not_set_aside(monkeypatch):
    """It is whole: only this moment's access failed."""
    path = run_dir("live") / "sentinel.db"
    connect(path).close()

    def busy(_):
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr("sentinel.store.database.connect", busy)
    with pytest.raises(sqlite3.OperationalError):
        agent()

    assert not list(path.parent.glob("*.corrupt-*"))


@pytest.mark.quiet
def test_what_one_outlet_cannot_show_is_still_stored_and_judged(monkeypatch):
    with ranks() as begin:
        begin(0, world=1, steps=20, values={"loss": LOSSES}, ending="finished")
        served = agent()

        def falls(_):
            raise UnicodeEncodeError("utf-8", "", 0, 1, "surrogates not allowed")

        monkeypatch.setattr(served.processor.exposition, "take", falls)
        monkeypatch.setattr(served, "_over", lambda: queued() > 0)
        served.serve()

    assert queued() > 0
    assert served.counters.counts["sentinel_dropped_records_total", "publishing_failed"] > 0


def test_who_begins_anew_with_other_settings_tells_of_what_goes_wrong_again(monkeypatch):
    """By its old name it would pass for what people were told before, and reach nobody."""
    with ranks() as begin:
        begin(0, world=1, steps=20, values={"loss": LOSSES})
        first = agent()
        monkeypatch.setattr(first, "_over", lambda: queued() > 0)
        first.serve()
        before = queued()

        begin(0, world=1, steps=20, attempt=1, values={"loss": LOSSES}, ending="finished")
        second = agent(disable=["loss_plateau"])
        monkeypatch.setattr(second, "_over", lambda: second.source.ended)
        second.serve()

    assert queued() > before


def test_the_next_agent_shows_the_cause_that_the_last_one_named(monkeypatch):
    class Nans:
        title, severity, explains = "broken numbers", None, frozenset({"nan_or_inf"})

        def clues(self, scene):
            yield from symptom_evidence(scene.earliest_symptom("nan_or_inf"), 0.9)

        def remedy(self, _):
            return "Look at the data."

    monkeypatch.setattr("sentinel.pipeline.pipeline.build_causes", lambda: {"nans": Nans()})
    with ranks() as begin:
        begin(0, world=1, steps=20, values={"loss": LOSSES})
        first = agent()
        monkeypatch.setattr(first, "_over", lambda: queued() > 0)
        first.serve()
        (told,) = first.processor.exposition.state()["cases"]
        second = agent()
        second.registration.withdraw()

    assert told["diagnosis"]["cause"] == "nans"
    assert second.processor.exposition.state()["cases"] == [told]
