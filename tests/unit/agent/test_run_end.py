"""A run that ends closes what it opened, at each kind of receiver, also after a killed agent."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from support.results import NOW

from sentinel.agent.processor import RunProcessor
from sentinel.config.settings import build_sinks, load_settings
from sentinel.model.counters import Counters
from sentinel.model.incident import Resolution
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.hardware import NodeMeasurements
from sentinel.store import notification_codec, silences
from sentinel.store.database import connect

SINKS = {
    "webhook": {"url": "http://127.0.0.1:9/unused"},
    "slack": {"url": "http://127.0.0.1:9/unused"},
    "discord": {"url": "http://127.0.0.1:9/unused"},
}
NOBODY_FAILED = {"failed_ranks": "", "died_ranks": "", "state": "running"}
RANK_1_RAISED = {
    **NOBODY_FAILED,
    "cause": "exception", "exception": "ValueError", "failed_ranks": "1", "culprit_ranks": "1",
    "state": "failed", "final": "yes",
}  # fmt: skip


class RunOnDisk:
    """The records of a run, processed by one agent after another with the same database."""

    def __init__(self, directory):
        self.path = directory / "sentinel.db"
        self.settings = load_settings({"sinks": SINKS, "hold_seconds": 0.0})
        self.step, self.now, self.attempt = 0, NOW, 0
        self.connection = connect(self.path)
        self.restart_agent()

    def restart_agent(self):
        """The next agent, after the last one was killed."""
        self.connection.close()
        self.connection = connect(self.path)
        self.processor = RunProcessor(
            *("live", self.path, self.connection, self.settings, Counters()),
            sinks=build_sinks(self.settings),
            read_node=NodeMeasurements,
            live_rings=list,
            clock=lambda: self.now,
        )
        self.processor.restore()
        self.processor.poll_silences()

    def process(self, event=Event.STEP, values=None, count=1, **attributes):
        for _ in range(count):
            self.step += event is Event.STEP
            self.now += 1.0
            record = Record(
                *("live", WHOLE_RUN, self.step, self.now, event, values or {}, attributes),
                attempt=self.attempt,
            )
            self.processor.process(record)
            self.processor.persist()

    def train(self, loss=1.0, count=10):
        self.process(values={"loss": loss}, count=count)

    def heartbeat(self, count=1, **attributes):
        values = {"ranks_running": 0.0, "ranks_gone": 0.0, "ranks_failed": 0.0, "idle_seconds": 0.0}
        self.process(Event.HEARTBEAT, values, count, **attributes)

    def queued(self, sink):
        """Detector, reason and resolution of what was queued for a sink."""
        rows = self.connection.execute(
            "select notification from outbox where sink = ? and state != 'merged' order by rowid",
            [sink],
        )
        notifications = [notification_codec.decode(text) for (text,) in rows]
        return [
            (
                each.incident.key.detector,
                each.incident.resolution.name
                if each.reason.value == "resolved"
                else each.reason.value,
            )
            for each in notifications
        ]


@pytest.fixture
def run(tmp_path, monkeypatch):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.chdir(tmp_path)
    run = RunOnDisk(tmp_path)
    run.process(Event.START)
    run.train()
    run.train(float("nan"), 1)
    with closing(run.connection):
        yield run


OPENED = ("nan_or_inf", "opened")
FAILED = ("run_failed", "opened")


@pytest.mark.parametrize("sink", SINKS)
def test_a_finished_run_closes_what_it_opened_once(run, sink):
    run.process(Event.STOP, outcome="finished")
    expected = [OPENED, ("nan_or_inf", "RUN_FINISHED")]
    # What was not sent yet is one message.
    assert run.queued(sink) in (expected, expected[1:])

    before = run.queued(sink)
    run.restart_agent()
    run.heartbeat(3, **NOBODY_FAILED)
    assert run.queued(sink) == before


def test_what_another_process_closed_is_another_episode_after_a_restart(run):
    (incident,) = run.processor.pipeline.firing_incidents()
    closed = replace(incident)
    closed.resolve(Resolution.EXPIRED, run.step, run.now)
    end = Notification(NotificationReason.RESOLVED, closed, run.step, run.now)
    run.connection.execute("update outbox set state = 'delivered'")
    run.processor.history.store_incident(closed)
    run.processor.notification_policy.enqueue([end])
    run.connection.execute("update outbox set state = 'delivered'")
    before = run.queued("slack")

    run.restart_agent()
    assert run.processor.pipeline.firing_incidents() == []
    assert [*run.processor.pipeline.current_notifications()] == []
    for _ in range(2):
        run.train(float("nan"), 1)
        run.restart_agent()

    assert run.queued("slack") == [*before, OPENED]
    (again,) = run.processor.pipeline.firing_incidents()
    assert again.episode == 2


def test_a_sink_that_was_removed_from_the_settings_is_no_problem(run):
    rejected = "update outbox set state = 'dead', finished_at = ?, last_error = 'HTTP 404'"
    run.connection.execute(rejected, [run.now])
    run.connection.execute("update outbox set sink = 'removed' where sink = 'discord'")
    run.restart_agent()

    problems = run.processor.exposition.state()["delivery_problems"]
    assert {each["sink"] for each in problems} == {"slack", "webhook"}


def test_an_agent_killed_before_the_end_closes_it_after_its_restart(run):
    run.connection.execute("update outbox set state = 'delivered'")
    run.restart_agent()
    run.process(Event.STOP, outcome="finished")

    assert run.queued("slack") == [OPENED, ("nan_or_inf", "RUN_FINISHED")]


def test_a_failed_run_closes_the_others_only_where_an_alert_stays_open(run):
    run.connection.execute("update outbox set state = 'delivered'")
    run.process(Event.STOP, outcome="exception", exception="ValueError")
    run.heartbeat(4, **RANK_1_RAISED)

    closed = ("nan_or_inf", "RUN_FAILED")
    assert sorted(run.queued("webhook")) == sorted([OPENED, FAILED, closed])
    assert sorted(run.queued("discord")) == sorted([OPENED, FAILED, closed])
    assert run.queued("slack") == [OPENED, FAILED]


def test_a_failure_ends_at_the_first_step_of_the_next_attempt(run):
    run.heartbeat(4, **RANK_1_RAISED)
    run.connection.execute("update outbox set state = 'delivered'")
    run.restart_agent()
    run.attempt = 1
    run.process(Event.START)
    run.heartbeat(60, **NOBODY_FAILED)
    assert ("run_failed", "RESUMED") not in run.queued("slack")

    run.train(count=1)
    assert run.queued("slack")[-1] == ("run_failed", "RESUMED")


def test_an_acknowledged_failure_ends_without_a_message_and_stays_ended(run):
    run.heartbeat(4, **RANK_1_RAISED)
    run.connection.execute("update outbox set state = 'delivered'")
    with closing(connect(run.path)) as user:
        assert silences.acknowledge(user, "run_failed", run.now, "ana", "") == ["live/run_failed#1"]
    run.processor.poll_silences()
    run.heartbeat(1, **RANK_1_RAISED)

    assert run.queued("webhook")[-1] == ("run_failed", "ACKNOWLEDGED")
    assert run.queued("slack") == [OPENED, FAILED]
    run.restart_agent()
    run.heartbeat(4, **RANK_1_RAISED)
    assert run.queued("slack") == [OPENED, FAILED]
