"""Courier: threads, restarts and the end. What one page's fate is, `test_lane.py` says."""

import sqlite3
import time
from dataclasses import replace

import pytest
from support import webhook_receiver
from support.notifications import NOW, make_notification
from support.rank_processes import until
from support.results import step_result
from support.webhook_receiver import Receiver, deadlines_from_silence

from sentinel.model.counters import Counters
from sentinel.model.notification import NotificationReason
from sentinel.notify import outbox
from sentinel.notify.dispatcher import Dispatcher
from sentinel.notify.sink_worker import DELIVERIES_METRIC, DeliveryTiming
from sentinel.sinks.slack import Slack
from sentinel.sinks.webhook import Webhook
from sentinel.store.database import connect

PATIENCE = 60.0
"""Seconds: what a busy machine may take; nothing here takes long on an idle one."""
QUICK = DeliveryTiming(
    min_interval_seconds=0.01,
    deadline_seconds=PATIENCE,
    max_sleep_seconds=0.05,
    uniform_random=lambda: 0.01,
)


@pytest.fixture
def path(tmp_path):
    return tmp_path / "sentinel.db"


@pytest.fixture
def connection(path):
    connection = connect(path)
    yield connection
    connection.close()


@pytest.fixture
def hire(path):
    """Start couriers that are stopped when the test is over."""
    hired = []

    def start(pace=QUICK, **sinks):
        courier = Dispatcher(path, sinks, Counters(), timing=pace)
        hired.append(courier)
        courier.start()
        return courier

    yield start
    for courier in hired:
        assert courier.stop(timeout=PATIENCE)


def test_delivers_what_is_in_the_outbox_to_every_sink(connection, hire):
    """Exactly these messages, and not one more."""
    told = [make_notification(), make_notification(NotificationReason.RESOLVED), make_notification(episode=2)]
    with Receiver() as slack, Receiver() as webhook:
        courier = hire(slack=Slack(url=slack.url), webhook=Webhook(url=webhook.url))
        for one in told:
            outbox.enqueue(connection, one, courier.sinks)
        courier.update(replace(step_result(), pages=tuple(told)))
        assert courier.drain(PATIENCE) == 0
        assert courier.drain(0.2) == 0

    names = sorted(request.json["sentinel"]["page"] for request in webhook.requests)
    assert names == sorted(one.name for one in told)
    assert len(slack.requests) == 3


def test_a_dead_sink_does_not_hold_up_another(connection, hire):
    with Receiver(webhook_receiver.hang()) as hung, Receiver() as well:
        courier = hire(slack=Slack(url=hung.url), webhook=Webhook(url=well.url))
        for episode in range(1, 6):
            outbox.enqueue(connection, make_notification(episode=episode), courier.sinks)
        courier.wake()
        until(lambda: len(well.requests) == 5, PATIENCE, "the well one has every page")
        until(lambda: hung.requests, PATIENCE, "the hung one has its first")

        assert len(hung.requests) == 1


def test_what_a_killed_agent_left_behind_is_delivered_first(connection, hire):
    outbox.enqueue(connection, make_notification(), ["webhook"], NOW)
    outbox.claim(connection, "webhook", NOW)
    with Receiver() as there:
        assert hire(webhook=Webhook(url=there.url)).drain(PATIENCE) == 0

    assert [request.json["sentinel"]["page"] for request in there.requests] == [make_notification().name]


def test_a_restart_repeats_nothing(connection, hire):
    with Receiver() as there:
        for _ in range(3):
            courier = hire(webhook=Webhook(url=there.url))
            outbox.enqueue(connection, make_notification(), courier.sinks)
            assert courier.drain(PATIENCE) == 0
            assert courier.stop(PATIENCE)

    assert len(there.requests) == 1


def test_an_answer_that_never_came_repeats_the_page_with_the_same_identity(connection, hire):
    """The one repeat that cannot be helped, so the receiver must be able to see it."""
    silent = Receiver(script=[webhook_receiver.accept_then_hang()])
    with silent as there, deadlines_from_silence(there):
        courier = hire(
            replace(QUICK, deadline_seconds=0.1),
            webhook=Webhook(url=there.url, secret="pass phrase"),
        )
        outbox.enqueue(connection, make_notification(), courier.sinks)
        assert courier.drain(PATIENCE) == 0

    first, second = there.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body


def test_taking_a_verdict_never_waits(connection, hire):
    """Not even while the database is locked and the receiver hangs, for a whole minute."""
    with Receiver(webhook_receiver.hang()) as there:
        courier = hire(webhook=Webhook(url=there.url))
        outbox.enqueue(connection, make_notification(), courier.sinks)
        courier.wake()
        until(lambda: there.requests, PATIENCE, "the receiver hangs")
        connection.execute("begin immediate")
        started = time.monotonic()
        for _ in range(1000):
            courier.update(replace(step_result(), pages=(make_notification(),)))
        took = time.monotonic() - started
        connection.execute("rollback")

    assert took < PATIENCE / 2


def test_draining_ends_in_time_and_tells_what_is_left(connection, hire):
    """It comes back while the receiver still hangs over the page, as it does for a minute."""
    with Receiver(webhook_receiver.hang()) as there:
        courier = hire(webhook=Webhook(url=there.url))
        outbox.enqueue(connection, make_notification(), courier.sinks)
        started = time.monotonic()
        left = courier.drain(0.3)
        took = time.monotonic() - started

    assert left == 1
    assert took < PATIENCE / 2


def test_stopping_ends_in_time_though_the_receiver_hangs(connection, path):
    """The page stays in the outbox for the next agent."""
    pace = replace(QUICK, deadline_seconds=0.1)
    with Receiver(webhook_receiver.hang()) as there, deadlines_from_silence(there):
        courier = Dispatcher(path, {"webhook": Webhook(url=there.url)}, Counters(), timing=pace)
        outbox.enqueue(connection, make_notification(), courier.sinks)
        courier.start()
        until(lambda: there.requests, PATIENCE, "the request is under way")
        assert courier.stop(PATIENCE)
        assert not there.closing.is_set()

    assert outbox.count_undelivered(connection, ["webhook"]) == 1


def test_every_counter_is_there_from_the_start(path):
    tally = Counters()
    Dispatcher(path, {"slack": Slack(url="https://hooks.slack.com/services/X")}, tally)

    assert dict(tally.values) == {
        (DELIVERIES_METRIC, "slack:delivered"): 0,
        (DELIVERIES_METRIC, "slack:retry"): 0,
        (DELIVERIES_METRIC, "slack:dead"): 0,
    }


def test_trouble_with_the_database_is_survived(connection, hire, caplog):
    """And what came of a request is remembered until it can be stored."""
    connection.execute(
        "create trigger full before update on outbox when new.state = 'delivered'"
        " begin select raise(abort, 'CANARY'); end"
    )
    with Receiver() as there:
        courier = hire(webhook=Webhook(url=there.url))
        outbox.enqueue(connection, make_notification(), courier.sinks)
        until(lambda: "starts over" in caplog.text, PATIENCE, "the trouble is told")
        connection.execute("drop trigger full")
        assert courier.drain(PATIENCE) == 0

    assert len(there.requests) == 1
    assert "CANARY" not in caplog.text
    assert sqlite3.IntegrityError.__name__ in caplog.text
