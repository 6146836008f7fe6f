"""Recovery of an agent: the next agent processes again what was not stored."""

from __future__ import annotations

import sqlite3
from contextlib import closing
from dataclasses import replace
from types import SimpleNamespace

import pytest
from support.rank_processes import ranks
from support.webhook_receiver import Receiver

from sentinel.agent import main
from sentinel.agent.main import Agent
from sentinel.causes._evidence import symptom_evidence
from sentinel.config.settings import load_settings
from sentinel.model.record import Event
from sentinel.pipeline import pipeline
from sentinel.store.database import connect
from sentinel.store.storage_monitor import FailureKind, StorageFailure
from sentinel.transport.paths import current_run_dir, run_dir

LOSSES = [1.0] * 10 + [float("nan")] * 10


@pytest.fixture(autouse=True)
def directories(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    monkeypatch.chdir(tmp_path)


def make_agent(**settings):
    sinks = {"webhook": {"url": "http://127.0.0.1:9/unreachable"}}
    return Agent(
        "live", load_settings({"linger_seconds": 0.0, "port": 0, "sinks": sinks, **settings})
    )


def queued_notifications():
    with closing(connect(current_run_dir("live") / "sentinel.db")) as database:
        return database.execute("select count(*) from outbox").fetchone()[0]


def test_records_that_could_not_be_stored_are_processed_again(monkeypatch):
    """Otherwise the incident would exist without its notification."""
    with ranks() as begin:
        begin(0, world=1, steps=20, values={"loss": LOSSES})
        first = make_agent()

        def raise_disk_full(_):
            raise sqlite3.OperationalError("database or disk is full")

        with monkeypatch.context() as patched:
            patched.setattr(first.processor.journal, "store_positions", raise_disk_full)
            with pytest.raises(sqlite3.OperationalError):
                first.serve()
        assert queued_notifications() == 0

        begin(0, world=1, steps=1, attempt=1, ending="finished")
        second = make_agent()
        monkeypatch.setattr(second, "_is_finished", lambda: second.source.attempt == 1)
        second.serve()
        assert queued_notifications() > 0


def test_what_the_last_records_queue_is_sent_before_the_agent_ends(monkeypatch):
    """The next agent may never start."""
    with ranks() as begin, Receiver() as receiver:
        begin(0, world=1, steps=20, values={"loss": LOSSES}, ending="finished")
        agent = make_agent(sinks={"webhook": {"url": receiver.url}}, hold_seconds=0.0)
        monkeypatch.setattr(agent, "_is_finished", lambda: True)
        monkeypatch.setattr(agent, "_drain", agent.run_once)
        # As behind another notification: the worker waits for up to a second.
        monkeypatch.setattr(agent.dispatcher, "wake", lambda: None)
        agent.serve()

        assert [each.json["commonLabels"]["detector"] for each in receiver.accepted] == [
            "nan_or_inf"
        ]


class WaitingHead:
    """A head that waits for another node before it decides why a rank died."""

    is_shutting_down = has_unsaved_changes = has_unread = finished = False
    server = SimpleNamespace(stop=lambda: None)

    def merge(self, records):
        origin = {} if self.is_shutting_down else {"failure_origin": "undecided"}
        return [
            replace(record, attributes={**record.attributes, **origin})
            if record.event is Event.HEARTBEAT
            else record
            for record in records
        ]

    def persist(self):
        pass

    after_commit = persist


def test_a_stopped_agent_reports_what_waits_for_other_nodes(monkeypatch):
    with ranks() as begin:
        begin(0, world=1, steps=20, ending="exception")
        stopped = make_agent()
        stopped.cluster_role.head = WaitingHead()
        monkeypatch.setattr(stopped.cluster_role, "_decide", lambda _: None)
        queued_by_iteration = []

        def stop_after_four_iterations():
            queued_by_iteration.append(queued_notifications())
            if len(queued_by_iteration) == 4:
                stopped.stop_requested.set()

        monkeypatch.setattr(stopped, "_is_finished", stop_after_four_iterations)
        stopped.serve()

        assert queued_by_iteration == [0] * 4
        assert queued_notifications() == 1


def test_a_locked_database_is_not_moved_aside(monkeypatch):
    path = run_dir("live") / "sentinel.db"
    connect(path).close()

    def raise_locked(*_):
        raise sqlite3.OperationalError("database is locked")

    monkeypatch.setattr("sentinel.store.database.connect", raise_locked)
    with pytest.raises(sqlite3.OperationalError):
        make_agent()

    assert not list(path.parent.glob("*.corrupt-*"))


@pytest.mark.swallows_errors
def test_a_failing_consumer_does_not_prevent_storage_and_notifications(monkeypatch):
    with ranks() as begin:
        begin(0, world=1, steps=20, values={"loss": LOSSES}, ending="finished")
        agent = make_agent()

        def fail(_):
            raise UnicodeEncodeError("utf-8", "", 0, 1, "surrogates not allowed")

        monkeypatch.setattr(agent.processor.exposition, "update", fail)
        monkeypatch.setattr(agent, "_is_finished", lambda: queued_notifications() > 0)
        agent.serve()

    assert queued_notifications() > 0
    assert agent.counters.values["sentinel_dropped_records_total", "publishing_failed"] > 0


def test_after_a_change_of_settings_a_new_incident_is_notified(monkeypatch):
    """With a name used before, its notification would be taken for one sent already."""
    with ranks() as begin:
        begin(0, world=1, steps=20, values={"loss": LOSSES})
        first = make_agent()
        monkeypatch.setattr(first, "_is_finished", lambda: queued_notifications() > 0)
        first.serve()
        before = queued_notifications()

        begin(0, world=1, steps=20, attempt=1, values={"loss": LOSSES}, ending="finished")
        second = make_agent(disable=["loss_plateau"])
        monkeypatch.setattr(second, "_is_finished", lambda: second.source.ended)
        second.serve()

    assert queued_notifications() > before


def test_the_next_agent_shows_the_cause_diagnosed_by_the_last_one(monkeypatch):
    class Nans:
        title, severity, explains = "broken numbers", None, frozenset({"nan_or_inf"})

        def evidence(self, context):
            yield from symptom_evidence(context.earliest("nan_or_inf"), 0.9)

        def remedy(self, _):
            return "Look at the data."

    monkeypatch.setattr("sentinel.pipeline.pipeline.build_causes", lambda: {"nans": Nans()})
    with ranks() as begin:
        begin(0, world=1, steps=20, values={"loss": LOSSES})
        first = make_agent()
        monkeypatch.setattr(first, "_is_finished", lambda: queued_notifications() > 0)
        first.serve()
        (case,) = first.processor.exposition.state()["cases"]
        second = make_agent()
        second.registration.release()

    assert case["diagnosis"]["cause"] == "nans"
    (restored,) = second.processor.exposition.state()["cases"]
    # The message states how long ago the case opened.
    assert restored | {"message": case["message"]} == case


def test_an_agent_that_is_asked_to_stop_reads_what_the_rings_hold(monkeypatch):
    """A scheduler ends ranks and agent together; there is no next agent."""
    monkeypatch.setattr(main, "DRAIN_SECONDS", 600.0)
    with ranks() as begin:
        begin(0, world=1, steps=3000, ending="finished")
        agent = make_agent()
        agent.turn_limit.max_records = 100
        agent.run_once()
        agent.request_stop("SIGTERM")
        agent.serve()

    with closing(connect(current_run_dir("live") / "sentinel.db")) as database:
        query = "select count(*) from step where event = 'step'"
        assert database.execute(query).fetchone() == (3000,)


def test_what_is_stored_until_the_sink_workers_end_moves_to_shared_memory(monkeypatch):
    """Of an agent that works in the home directory: the next would send again what arrived."""
    monkeypatch.setattr("sentinel.agent.run_directory.shared_memory_room", lambda _: 0)
    agent = make_agent()
    stop = agent.dispatcher.stop

    def deliver_and_stop(timeout):
        with closing(connect(current_run_dir("live") / "sentinel.db")) as database:
            database.execute("insert or replace into sink_pause values('webhook', 7.0)")
        return stop(timeout)

    def fail():
        raise StorageFailure(FailureKind.UNUSABLE, OSError("gone"))

    monkeypatch.setattr(agent.dispatcher, "stop", deliver_and_stop)
    monkeypatch.setattr(agent.run_directory, "check", fail)
    with pytest.raises(StorageFailure):
        agent.serve()

    assert current_run_dir("live") != run_dir("live")
    with closing(connect(current_run_dir("live") / "sentinel.db")) as database:
        assert database.execute("select until from sink_pause").fetchall() == [(7.0,)]


def test_a_detector_that_cannot_be_built_is_no_damage(monkeypatch):
    """Its error is of the type that a decoder raises for a damaged value."""

    def fail(*_):
        raise TypeError("__init__() missing 1 required positional argument: 'limit'")

    monkeypatch.setattr(pipeline, "build", fail)
    with pytest.raises(TypeError, match="limit"):
        make_agent()
    assert not list(current_run_dir("live").glob("*.corrupt-*"))
