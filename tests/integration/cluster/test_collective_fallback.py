"""Failures caused by a lost node are one notification with it; other failures are notified soon.

Two nodes of two ranks, a head with a fake clock, and the pipeline that evaluates its records.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.heads import HeadHarness, last_heartbeat
from support.the_only import the_only

from sentinel.cluster.membership import ABANDON_AFTER_SECONDS
from sentinel.config.settings import Settings, build_causes, build_detectors
from sentinel.model.counters import Counters
from sentinel.model.notification import NotificationReason
from sentinel.model.record import Event
from sentinel.pipeline.pipeline import Pipeline

MAX_NOTIFICATION_SECONDS = 15.0
"""Limit of the time from the death of a node to its notification."""


class PipelineHarness(HeadHarness):
    """A head whose local ranks may fail, and the notifications of its pipeline with their times."""

    def __init__(self, path):
        super().__init__(path)
        self.pipeline = Pipeline(build_detectors(Settings()), Counters(), build_causes())
        self.notifications = []
        self.stepped_at, self.failed_at, self.running_ranks = self.now, 0.0, 2.0
        self.failure_attributes = {}
        self.other_node = self.start_nodes()
        for step in range(1, 30):
            self.take_step(step)

    def merge(self, *local_records, seconds=0.5):
        records = super().merge(*local_records, seconds=seconds)
        for record in records:
            self.notifications += [
                (self.now, notification)
                for result in self.pipeline.process(record)
                for notification in result.case_notifications
                if notification.reason is not NotificationReason.UPDATED
            ]
        return records

    def take_step(self, step, *, others=True):
        self.stepped_at = self.now
        if others:
            self.other_node.send(*self.other_node.records(step=step), self.other_node.heartbeat())
        self.merge(*self.own_node.records(step=step), self.local_heartbeat())

    def local_heartbeat(self):
        """The heartbeat of the local node, with the failure if there was one."""
        heartbeat = self.own_node.heartbeat()
        values = {
            "ranks_running": self.running_ranks,
            "ranks_gone": 0.0,
            "ranks_failed": 0.0,
            "idle_seconds": self.now + 0.5 - self.stepped_at,
        }
        attributes = {}
        if self.running_ranks:
            attributes = {
                "died_ranks": "",
                "failed_ranks": "",
                "straggler_ranks": "0,1",
                "straggler_step": "29",
            }
        if self.failed_at:
            seconds_ago = f"{self.now + 0.5 - self.failed_at:.3f}"
            attributes |= {**self.failure_attributes, "failed_seconds_ago": seconds_ago}
        attributes = {**heartbeat.attributes, **attributes}
        return replace(heartbeat, values=values, attributes=attributes)

    def fail(self, cause="exception", *, left=0, **attributes):
        """The local ranks fail at once, but `left` of them continue."""
        self.failed_at, self.running_ranks = self.now, float(left)
        ranks = [0, 1][: 2 - left]
        names = ",".join(map(str, ranks))
        died = cause == "died"
        self.failure_attributes = {
            "cause": cause,
            "died_ranks": names * died,
            "failed_ranks": names * (not died),
            "state": "running" if left else "died" if died else "failed",
            **attributes,
        }
        stops = [
            self.own_node.record(rank, Event.STOP, 29, outcome=cause, **attributes)
            for rank in ranks
        ]
        self.merge(*stops, self.local_heartbeat())

    def advance_idle(self, seconds, *, others=False):
        """Heartbeats for that time, without steps."""
        for _ in range(int(seconds * 2)):
            if others:
                self.other_node.send(self.other_node.heartbeat())
            self.merge(self.local_heartbeat())

    @property
    def notified_detectors(self):
        return [notification.incident.key.detector for _, notification in self.notifications]


@pytest.fixture
def harness(tmp_path):
    return PipelineHarness(tmp_path / "sentinel.db")


FAILURES = [("exception", {"exception": "RuntimeError"}), ("exit", {"code": "1"}), ("died", {})]


@pytest.mark.parametrize(("cause", "attributes"), FAILURES, ids=[cause for cause, _ in FAILURES])
@pytest.mark.parametrize("left", [0, 1], ids=["all fail", "one continues"])
def test_a_dead_node_and_the_failures_it_causes_are_one_notification(
    harness, cause, attributes, left
):
    died_at = harness.now
    harness.fail(cause, left=left, **attributes)
    harness.advance_idle(2 * ABANDON_AFTER_SECONDS)

    time, notification = the_only(harness.notifications)
    assert notification.incident.key.detector == "node_lost"
    assert notification.diagnosis.cause == "node_down"
    assert notification.incident.severity.value == "critical"
    assert 0.0 < time - died_at <= MAX_NOTIFICATION_SECONDS
    failures = {"exception": "raised RuntimeError", "exit": "exited with code 1"}
    evidence = notification.incident.finding.evidence
    assert evidence["first_failed_rank"] == f"rank 0 {failures.get(cause, 'was killed')}"
    assert evidence["training"] == ("stopped" if left else "ended")
    assert str(evidence["first_failed_rank"]) in notification.incident.finding.summary


def test_ranks_that_fail_long_after_the_node_raise_no_second_notification(harness):
    """As after a power failure, when connections of the others time out minutes later."""
    harness.advance_idle(600.0)
    assert harness.notified_detectors == ["node_lost"]
    harness.fail(exception="RuntimeError")
    harness.advance_idle(2 * ABANDON_AFTER_SECONDS)

    assert harness.notified_detectors == ["node_lost"]


@pytest.mark.parametrize(("cause", "attributes"), FAILURES, ids=[cause for cause, _ in FAILURES])
def test_a_failure_is_notified_once_all_nodes_have_sent_a_heartbeat(harness, cause, attributes):
    failed_at = harness.now
    harness.fail(cause, **attributes)
    assert harness.notified_detectors == []
    harness.advance_idle(30.0, others=True)

    time, notification = the_only(harness.notifications)
    assert notification.incident.key.detector == ("run_died" if cause == "died" else "run_failed")
    assert time - failed_at <= 4.0


def test_a_failure_is_notified_at_once_if_the_other_nodes_have_ended(harness):
    harness.other_node.send(
        *harness.other_node.records(Event.STOP, outcome="exception", exception="RuntimeError"),
        replace(harness.other_node.heartbeat("failed"), values={"ranks_running": 0.0}),
    )
    harness.fail(exception="ValueError")

    assert harness.notified_detectors == ["run_failed"]


def test_a_node_that_falls_silent_after_the_run_ended_raises_no_notification(harness):
    """Launchers end all nodes and their agents once a rank has failed."""
    harness.fail(exception="ValueError")
    harness.advance_idle(5.0, others=True)
    harness.advance_idle(2 * ABANDON_AFTER_SECONDS)

    assert harness.notified_detectors == ["run_failed"]


def test_a_failure_of_ranks_that_had_continued_without_the_node_is_separate(harness):
    for step in range(30, 60):
        harness.take_step(step, others=False)
    assert harness.notified_detectors == ["node_lost"]
    failed_at = harness.now
    harness.fail(exception="ValueError")

    assert harness.notified_detectors == ["node_lost", "run_failed"]
    assert harness.notifications[-1][0] - failed_at <= 4.0


def test_a_failure_is_notified_once_a_silent_node_is_back(harness):
    harness.fail(exception="ValueError")
    harness.advance_idle(8.0)
    assert harness.notified_detectors == []
    harness.advance_idle(4.0, others=True)

    assert harness.notified_detectors == ["run_failed"]


def test_a_new_attempt_before_the_decision_raises_no_notification(harness):
    """As when torchrun continues with the remaining nodes."""
    harness.fail("died")
    harness.advance_idle(5.0)
    harness.failed_at, harness.running_ranks = 0.0, 2.0
    harness.stepped_at = harness.now
    harness.world_size = 2
    harness.own_node.started_at = harness.now
    for _ in range(30):
        harness.stepped_at = harness.now
        starts = harness.own_node.records(Event.START, attempt=1)
        harness.merge(*starts, replace(harness.local_heartbeat(), attempt=1))

    assert harness.notified_detectors == []


def test_a_head_that_shuts_down_notifies_an_undecided_failure(harness):
    harness.fail(exception="RuntimeError")
    harness.advance_idle(3.0)
    assert harness.notified_detectors == []
    harness.head.is_shutting_down = True
    harness.advance_idle(0.5)

    assert harness.notified_detectors == ["run_failed"]


def test_a_restarted_head_waits_for_the_nodes_before_it_notifies(harness):
    harness.fail(exception="RuntimeError")
    harness.connection.close()
    harness.start_agent()
    harness.advance_idle(5.0)
    assert harness.notified_detectors == []
    node = harness.other_node
    node.send_hello()
    harness.merge()
    harness.advance_idle(3.0, others=True)

    assert harness.notified_detectors == ["run_failed"]


def test_a_restarted_head_notifies_if_the_nodes_do_not_return(harness):
    harness.fail(exception="RuntimeError")
    harness.connection.close()
    harness.start_agent()
    harness.advance_idle(MAX_NOTIFICATION_SECONDS)

    assert harness.notified_detectors == ["run_failed"]


def test_a_lost_node_whose_own_rank_failed_first_explains_no_failure(harness):
    heartbeat = harness.other_node.heartbeat()
    attributes = {
        **heartbeat.attributes,
        "cause": "exception",
        "failed_ranks": "2",
        "failed_seconds_ago": "0.100",
        "died_ranks": "",
    }
    values = {**heartbeat.values, "ranks_running": 1.0, "ranks_failed": 1.0}
    harness.other_node.send(
        harness.other_node.record(2, Event.STOP, 29, outcome="exception"),
        replace(heartbeat, attributes=attributes, values=values),
    )
    harness.advance_idle(3.0)

    assert harness.notified_detectors == ["run_failed"]
    assert (
        "failure_origin" not in last_heartbeat(harness.merge(harness.local_heartbeat())).attributes
    )
