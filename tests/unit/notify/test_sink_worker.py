"""Lane: what the receiver answers decides what becomes of a page. The clock is the test's."""

import logging

import pytest
from support import webhook_receiver
from support.notifications import make_notification
from support.sink_workers import lane_on_bench

from sentinel.sinks.slack import Slack


@pytest.fixture
def bench(tmp_path):
    with lane_on_bench(tmp_path) as bench:
        yield bench


def test_delivers_a_page_and_never_again(bench):
    bench.enqueue(make_notification())
    for _ in range(5):
        bench.deliver_next()

    assert len(bench.there.requests) == 1
    assert bench.row()[:2] == ("delivered", 1)
    assert bench.outcomes() == {"slack:delivered": 1}


@pytest.mark.parametrize(
    ("mode", "error"),
    [
        (webhook_receiver.status(500), "HTTP 500"),
        (webhook_receiver.status(503), "HTTP 503"),
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
def test_what_may_pass_is_tried_again(bench, mode, error):
    """Then, and only then, the page arrives."""
    bench.there.script = [mode]
    bench.enqueue(make_notification())
    bench.deliver_next()

    assert bench.row() == ("queued", 1, 1.0, error)
    bench.deliver_next(after=0.9)
    assert len(bench.there.requests) == 1
    bench.deliver_next(after=0.2)
    assert bench.row()[0] == "delivered"
    assert bench.outcomes() == {"slack:retry": 1, "slack:delivered": 1}


@pytest.mark.parametrize("code", [400, 401, 403, 404, 410, 422])
def test_what_the_receiver_refuses_is_given_up_at_once(bench, code):
    bench.there.default = webhook_receiver.status(code)
    bench.enqueue(make_notification())
    for _ in range(3):
        bench.deliver_next(after=60)

    assert len(bench.there.requests) == 1
    assert bench.row()[0] == "dead"
    assert bench.row()[3] == f"HTTP {code}"
    assert bench.outcomes() == {"slack:dead": 1}


@pytest.mark.parametrize("refusal", [(413, b""), (400, b"msg_blocks_too_long")])
def test_a_page_that_is_too_long_is_sent_shorter_once(bench, refusal):
    bench.there.script = [webhook_receiver.status(*refusal), webhook_receiver.status(500)]
    bench.enqueue(make_notification(summary="word " * 300))
    for _ in range(3):
        bench.deliver_next(after=60)

    lengths = [len(request.body) for request in bench.there.requests]
    assert lengths[1] == lengths[2] < lengths[0] / 2
    assert bench.row()[0] == "delivered"


def test_a_page_that_is_too_long_even_when_short_is_given_up(bench):
    bench.there.default = webhook_receiver.status(413)
    bench.enqueue(make_notification())
    for _ in range(4):
        bench.deliver_next(after=60)

    assert len(bench.there.requests) == 2
    assert bench.row()[0] == "dead"


def test_a_page_that_cannot_be_read_or_worded_is_given_up_and_said(bench, caplog):
    bench.enqueue(make_notification())
    bench.connection.execute("update outbox set page = '{}'")
    bench.deliver_next()

    assert bench.row() == ("dead", 1, -1.0, "UnreadablePageError")
    assert "slack" in caplog.text
    assert bench.there.requests == []


def test_an_outcome_that_could_not_be_stored_is_stored_later_and_not_sent_again(bench):
    """A full disk between the answer and the commit must not page anybody twice."""
    bench.enqueue(make_notification())
    bench.connection.execute(
        "create trigger full before update on outbox when new.state = 'delivered'"
        " begin select raise(abort, 'disk full'); end"
    )
    with pytest.raises(Exception, match="disk full"):
        bench.deliver_next()
    with pytest.raises(Exception, match="disk full"):
        bench.deliver_next(after=60)
    bench.connection.execute("drop trigger full")
    bench.deliver_next(after=60)

    assert bench.row()[0] == "delivered"
    assert len(bench.there.requests) == 1


class Gullible(Slack):
    """A sink that believes anything."""

    def accepted(self, status, body):
        return True


def test_no_sink_can_take_silence_for_an_answer(bench):
    bench.lane.sink = Gullible(url=bench.there.url)
    bench.there.script = [webhook_receiver.hang()]
    bench.enqueue(make_notification())
    bench.deliver_next()

    assert bench.row()[0] == "queued"


def test_says_which_sink_and_what_status_and_nothing_else(bench, caplog):
    caplog.set_level(logging.DEBUG, "sentinel")
    bench.there.script = [webhook_receiver.status(500, b"body of the answer")]
    bench.enqueue(make_notification())
    bench.deliver_next()
    bench.deliver_next(after=60)

    assert [record.getMessage() for record in caplog.records] == [
        "Sink slack did not take a page (HTTP 500); again in 1.0 s",
        "Sink slack took a page (HTTP 200, try 2)",
    ]
