"""Tests of the threads, restarts and shutdown of the dispatcher."""

import sqlite3
import time
from dataclasses import replace

import pytest
from pydantic import SecretStr
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
from sentinel.sinks.pagerduty import Pagerduty
from sentinel.sinks.slack import Slack
from sentinel.sinks.webhook import Webhook
from sentinel.store.database import connect

TIMEOUT_SECONDS = 60.0
"""Long enough for a busy machine."""
FAST = DeliveryTiming(
    min_interval_seconds=0.01,
    deadline_seconds=TIMEOUT_SECONDS,
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
def start_dispatcher(path):
    """Returns a function that starts a dispatcher, which is stopped after the test."""
    started = []

    def start(timing=FAST, **sinks):
        dispatcher = Dispatcher(path, sinks, Counters(), timing=timing)
        started.append(dispatcher)
        dispatcher.start()
        return dispatcher

    yield start
    for dispatcher in started:
        assert dispatcher.stop(timeout=TIMEOUT_SECONDS)


def test_the_receiver_of_each_sink_is_stored_without_its_secrets(connection, start_dispatcher):
    def pager(key):
        return Pagerduty(routing_key=SecretStr(key * 32))

    start_dispatcher(a=pager("a"), b=pager("b"), also_a=pager("a"))

    stored = outbox.load_addresses(connection)
    assert stored["a"] == stored["also_a"] != stored["b"]
    assert {len(address) for address in stored.values()} == {16}


def test_the_outbox_is_delivered_to_every_sink_once(connection, start_dispatcher):
    notifications = (
        make_notification(),
        make_notification(NotificationReason.RESOLVED, episode=3),
        make_notification(episode=2),
    )
    with Receiver() as slack, Receiver() as webhook:
        dispatcher = start_dispatcher(slack=Slack(url=slack.url), webhook=Webhook(url=webhook.url))
        for notification in notifications:
            outbox.enqueue(connection, notification, dispatcher.sinks)
        dispatcher.update(replace(step_result(), case_notifications=notifications))
        assert dispatcher.drain(TIMEOUT_SECONDS) == 0
        assert dispatcher.drain(0.2) == 0

    names = sorted(request.json["sentinel"]["notification"] for request in webhook.requests)
    assert names == sorted(each.name for each in notifications)
    assert len(slack.requests) == 3


def test_a_hanging_sink_does_not_delay_another(connection, start_dispatcher):
    with Receiver(webhook_receiver.hang()) as hanging, Receiver() as healthy:
        dispatcher = start_dispatcher(
            slack=Slack(url=hanging.url), webhook=Webhook(url=healthy.url)
        )
        for episode in range(1, 6):
            outbox.enqueue(connection, make_notification(episode=episode), dispatcher.sinks)
        dispatcher.wake()
        until(
            lambda: len(healthy.requests) == 5,
            TIMEOUT_SECONDS,
            "the healthy receiver has every notification",
        )
        until(lambda: hanging.requests, TIMEOUT_SECONDS, "the hanging receiver has one request")

        assert len(hanging.requests) == 1


@pytest.mark.fault("D10")
def test_an_interrupted_delivery_is_repeated_after_a_restart(connection, start_dispatcher):
    outbox.enqueue(connection, make_notification(), ["webhook"], NOW)
    outbox.claim(connection, "webhook", NOW)
    with Receiver() as receiver:
        assert start_dispatcher(webhook=Webhook(url=receiver.url)).drain(TIMEOUT_SECONDS) == 0

    (request,) = receiver.requests
    assert request.json["sentinel"]["notification"] == make_notification().name


def test_a_restart_repeats_no_delivery(connection, start_dispatcher):
    with Receiver() as receiver:
        for _ in range(3):
            dispatcher = start_dispatcher(webhook=Webhook(url=receiver.url))
            outbox.enqueue(connection, make_notification(), dispatcher.sinks)
            assert dispatcher.drain(TIMEOUT_SECONDS) == 0
            assert dispatcher.stop(TIMEOUT_SECONDS)

    assert len(receiver.requests) == 1


@pytest.mark.fault("D9")
def test_a_repeat_after_a_missing_response_has_the_same_key(connection, start_dispatcher):
    """The repeat is unavoidable, so the receiver must be able to detect it."""
    hanging = Receiver(script=[webhook_receiver.accept_then_hang()])
    with hanging as receiver, deadlines_from_silence(receiver):
        dispatcher = start_dispatcher(
            replace(FAST, deadline_seconds=0.1),
            webhook=Webhook(url=receiver.url, secret="pass phrase"),
        )
        outbox.enqueue(connection, make_notification(), dispatcher.sinks)
        assert dispatcher.drain(TIMEOUT_SECONDS) == 0

    first, second = receiver.requests
    assert first.headers["webhook-id"] == second.headers["webhook-id"]
    assert first.body == second.body


def test_update_never_blocks(connection, start_dispatcher):
    """Neither a locked database nor a hanging receiver delays it."""
    with Receiver(webhook_receiver.hang()) as receiver:
        dispatcher = start_dispatcher(webhook=Webhook(url=receiver.url))
        outbox.enqueue(connection, make_notification(), dispatcher.sinks)
        dispatcher.wake()
        until(lambda: receiver.requests, TIMEOUT_SECONDS, "the receiver hangs")
        connection.execute("begin immediate")
        result = replace(step_result(), case_notifications=(make_notification(),))
        started = time.monotonic()
        for _ in range(1000):
            dispatcher.update(result)
        elapsed = time.monotonic() - started
        connection.execute("rollback")

    assert elapsed < TIMEOUT_SECONDS / 2


def test_drain_ends_in_time_and_returns_the_number_of_undelivered_rows(
    connection, start_dispatcher
):
    with Receiver(webhook_receiver.hang()) as receiver:
        dispatcher = start_dispatcher(webhook=Webhook(url=receiver.url))
        outbox.enqueue(connection, make_notification(), dispatcher.sinks)
        started = time.monotonic()
        undelivered = dispatcher.drain(0.3)
        elapsed = time.monotonic() - started

    assert undelivered == 1
    assert elapsed < TIMEOUT_SECONDS / 2


def test_stop_ends_in_time_while_the_receiver_hangs(connection, path):
    """The notification stays in the outbox."""
    timing = replace(FAST, deadline_seconds=0.1)
    with Receiver(webhook_receiver.hang()) as receiver, deadlines_from_silence(receiver):
        dispatcher = Dispatcher(
            path, {"webhook": Webhook(url=receiver.url)}, Counters(), timing=timing
        )
        outbox.enqueue(connection, make_notification(), dispatcher.sinks)
        dispatcher.start()
        until(lambda: receiver.requests, TIMEOUT_SECONDS, "the request arrives")
        assert dispatcher.stop(TIMEOUT_SECONDS)
        assert not receiver.closing.is_set()

    assert outbox.count_undelivered(connection, ["webhook"]) == 1


def test_every_counter_starts_at_zero(path):
    counters = Counters()
    Dispatcher(path, {"slack": Slack(url="https://hooks.slack.com/services/X")}, counters)

    assert dict(counters.values) == {
        (DELIVERIES_METRIC, "slack:delivered"): 0,
        (DELIVERIES_METRIC, "slack:retry"): 0,
        (DELIVERIES_METRIC, "slack:dead"): 0,
    }


def test_a_worker_survives_a_database_error(connection, start_dispatcher, caplog):
    """The worker keeps the outcome of a request until the outcome is stored."""
    connection.execute(
        "create trigger full before update on outbox when new.state = 'delivered'"
        " begin select raise(abort, 'CANARY'); end"
    )
    with Receiver() as receiver:
        dispatcher = start_dispatcher(webhook=Webhook(url=receiver.url))
        outbox.enqueue(connection, make_notification(), dispatcher.sinks)
        until(lambda: "restarts" in caplog.text, TIMEOUT_SECONDS, "the error is logged")
        connection.execute("drop trigger full")
        assert dispatcher.drain(TIMEOUT_SECONDS) == 0

    assert len(receiver.requests) == 1
    assert "CANARY" not in caplog.text
    assert sqlite3.IntegrityError.__name__ in caplog.text


def test_an_outcome_that_was_not_stored_outlasts_an_agent_that_failed_at_its_start(
    path, connection, monkeypatch
):
    """Otherwise the agent after that one would send the notification again."""

    def fail(*_):
        raise sqlite3.OperationalError("database or disk is full")

    with Receiver() as webhook:
        sinks = {"webhook": Webhook(url=webhook.url)}
        first = Dispatcher(path, sinks, Counters(), timing=FAST)
        worker = first.workers["webhook"] = first._new_worker("webhook", connection)
        outbox.enqueue(connection, make_notification(), sinks)
        with monkeypatch.context() as patched:
            patched.setattr(outbox, "mark_delivered", fail)
            with pytest.raises(sqlite3.OperationalError):
                worker.deliver_next()
        second = Dispatcher(path.parent / "lost" / "x.db", sinks, Counters(), predecessor=first)
        with pytest.raises(sqlite3.OperationalError):
            second.start()
        third = Dispatcher(path, sinks, Counters(), timing=FAST, predecessor=second)
        third.start()
        assert third.drain(TIMEOUT_SECONDS) == 0
        assert third.stop(TIMEOUT_SECONDS)

    assert len(webhook.requests) == 1
