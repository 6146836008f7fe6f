"""Tests of the outcome of a delivery, by the response of the receiver."""

import logging
import shutil
import sqlite3
from contextlib import closing

import pytest
from support import webhook_receiver
from support.notifications import make_notification
from support.sink_workers import sink_worker

from sentinel.model.notification import NotificationReason
from sentinel.notify import outbox
from sentinel.sinks.slack import Slack
from sentinel.store.database import connect


@pytest.fixture
def fixture(tmp_path):
    with sink_worker(tmp_path) as fixture:
        yield fixture


def test_a_notification_is_delivered_once(fixture):
    fixture.enqueue(make_notification())
    for _ in range(5):
        fixture.deliver_next()

    assert len(fixture.receiver.requests) == 1
    assert fixture.row()[:2] == ("delivered", 1)
    assert fixture.outcomes() == {"slack:delivered": 1}


@pytest.mark.fault("D4")
@pytest.mark.parametrize(
    ("mode", "error"),
    [
        (webhook_receiver.status(500), "HTTP 500"),
        (webhook_receiver.status(503), "HTTP 503"),
        (webhook_receiver.status(407), "HTTP 407"),
        (webhook_receiver.status(408), "HTTP 408"),
        (webhook_receiver.status(425), "HTTP 425"),
        (webhook_receiver.status(429), "HTTP 429"),
        (webhook_receiver.garbage(), "HTTP 200"),
        (webhook_receiver.status(202), "HTTP 202"),
        (webhook_receiver.redirect("http://127.0.0.1:9/"), "HTTP 302"),
        (webhook_receiver.hang(), "DeadlineExceededError"),
        (webhook_receiver.drip_body(), "DeadlineExceededError"),
        (webhook_receiver.hang_up(), "RemoteDisconnected"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
def test_a_temporary_failure_is_retried(fixture, mode, error):
    fixture.receiver.script = [mode]
    fixture.enqueue(make_notification())
    fixture.deliver_next()

    assert fixture.row() == ("queued", 1, 1.0, error)
    fixture.deliver_next(after=0.9)
    assert len(fixture.receiver.requests) == 1
    fixture.deliver_next(after=0.2)
    assert fixture.row()[0] == "delivered"
    assert fixture.outcomes() == {"slack:retry": 1, "slack:delivered": 1}


@pytest.mark.fault("D5")
@pytest.mark.parametrize("code", [400, 401, 403, 404, 410, 422])
def test_a_permanent_failure_is_given_up_at_once(fixture, code):
    fixture.receiver.default = webhook_receiver.status(code)
    fixture.enqueue(make_notification())
    for _ in range(3):
        fixture.deliver_next(after=60)

    assert len(fixture.receiver.requests) == 1
    assert fixture.row()[0] == "dead"
    assert fixture.row()[3] == f"HTTP {code}"
    assert fixture.outcomes() == {"slack:dead": 1}


@pytest.mark.fault("D5")
@pytest.mark.parametrize("response", [(413, b""), (400, b"msg_blocks_too_long")])
def test_a_notification_that_is_too_long_is_shortened(fixture, response):
    fixture.receiver.script = [webhook_receiver.status(*response), webhook_receiver.status(500)]
    fixture.enqueue(
        make_notification(
            summary="word " * 300, evidence={f"value_{n}": "x" * 600 for n in range(12)}
        )
    )
    for _ in range(3):
        fixture.deliver_next(after=60)

    lengths = [len(request.body) for request in fixture.receiver.requests]
    assert lengths[1] == lengths[2] < lengths[0] / 2
    assert fixture.row()[0] == "delivered"


def test_a_shortened_notification_that_is_too_long_is_given_up(fixture):
    fixture.receiver.default = webhook_receiver.status(413)
    fixture.enqueue(make_notification())
    for _ in range(4):
        fixture.deliver_next(after=60)

    assert len(fixture.receiver.requests) == 2
    assert fixture.row()[0] == "dead"


def test_an_unreadable_notification_is_given_up_and_logged(fixture, caplog):
    fixture.enqueue(make_notification())
    fixture.connection.execute("update outbox set notification = '{}'")
    fixture.deliver_next()

    assert fixture.row() == ("dead", 1, -1.0, "UnreadableNotificationError")
    assert "slack" in caplog.text
    assert fixture.receiver.requests == []


def test_an_outcome_that_fails_to_be_stored_is_stored_later(fixture):
    """A full disk between the response and the commit causes no second delivery."""
    fixture.enqueue(make_notification())
    fixture.connection.execute(
        "create trigger full before update on outbox when new.state = 'delivered'"
        " begin select raise(abort, 'disk full'); end"
    )
    with pytest.raises(Exception, match="disk full"):
        fixture.deliver_next()
    with pytest.raises(Exception, match="disk full"):
        fixture.deliver_next(after=60)
    fixture.connection.execute("drop trigger full")
    fixture.deliver_next(after=60)

    assert fixture.row()[0] == "delivered"
    assert len(fixture.receiver.requests) == 1


def test_the_end_of_a_case_is_not_sent_again_if_the_outbox_cannot_be_read_after_it(fixture):
    """Whether the report of the case was sent is read between the response and the commit."""

    class LosingSlack(Slack):
        def receipt(self, response):
            fixture.connection.execute("alter table outbox rename to lost")

    fixture.worker.sink = LosingSlack(url=fixture.receiver.url)
    fixture.enqueue(make_notification(NotificationReason.RESOLVED))
    with pytest.raises(sqlite3.OperationalError, match="no such table"):
        fixture.deliver_next()
    fixture.connection.execute("alter table lost rename to outbox")
    fixture.deliver_next(after=60)

    assert fixture.row()[:2] == ("delivered", 1)
    assert len(fixture.receiver.requests) == 1


class AcceptingSlack(Slack):
    """A sink that accepts every response."""

    def is_accepted(self, response):
        return True


@pytest.mark.fault("D9")
def test_a_missing_response_is_never_accepted(fixture):
    fixture.worker.sink = AcceptingSlack(url=fixture.receiver.url)
    fixture.receiver.script = [webhook_receiver.hang()]
    fixture.enqueue(make_notification())
    fixture.deliver_next()

    assert fixture.row()[0] == "queued"


@pytest.mark.fault("X1")
def test_the_log_names_sink_and_status_only(fixture, caplog):
    caplog.set_level(logging.DEBUG, "sentinel")
    fixture.receiver.script = [webhook_receiver.status(500, b"body of the response")]
    fixture.enqueue(make_notification())
    fixture.deliver_next()
    fixture.deliver_next(after=60)

    assert [record.getMessage() for record in caplog.records] == [
        "Sink slack did not accept a notification (HTTP 500); retry in 1.0 s",
        "Sink slack accepted a notification (HTTP 200, try 2)",
    ]


def test_a_notification_that_is_not_wanted_at_present_is_sent_later(fixture):
    fixture.enqueue(make_notification())
    fixture.worker.is_wanted = lambda _: False
    fixture.deliver_next()
    assert (fixture.row()[0], fixture.row()[3], fixture.receiver.requests) == ("queued", "", [])

    fixture.worker.is_wanted = lambda _: True
    fixture.deliver_next(after=1.1)
    assert fixture.outcomes() == {"slack:delivered": 1}


def test_an_outcome_is_stored_in_the_database_that_replaces_a_damaged_one(fixture, tmp_path):
    """Its row is inserted if it could not be copied, so that it is not sent again."""
    fixture.enqueue(make_notification())
    fixture.connection.execute(
        "create trigger fail before update of finished_at on outbox"
        " begin select raise(abort, 'malformed'); end"
    )
    with pytest.raises(sqlite3.DatabaseError):
        fixture.deliver_next()

    with closing(connect(tmp_path / "new.db")) as replacement:
        fixture.worker.connection = replacement
        fixture.worker.store_pending_outcome()
        assert outbox.count_by_state(replacement) == {("slack", "delivered"): 1}
        assert not outbox.enqueue(replacement, make_notification(), ["slack"])
    assert len(fixture.receiver.requests) == 1


def test_a_damaged_notification_is_reported_and_not_given_up(fixture):
    fixture.enqueue(make_notification())
    fixture.connection.execute("update outbox set notification = '{\"incident'")
    with pytest.raises(sqlite3.DatabaseError):
        fixture.deliver_next()

    assert fixture.row()[0] == "sending"


@pytest.mark.fault("S8")
def test_a_delivery_survives_the_loss_of_the_write_ahead_log(fixture, tmp_path):
    """As after a power failure; the log is written to the database before the next delivery."""
    fixture.enqueue(make_notification())
    fixture.deliver_next()
    without_log = tmp_path / "copy.db"
    shutil.copyfile(tmp_path / "sentinel.db", without_log)

    with closing(connect(without_log)) as connection:
        assert outbox.count_by_state(connection) == {("slack", "delivered"): 1}
