"""Tests of the delays, limits and order of the requests to one receiver."""

from dataclasses import replace

import pytest
from support import webhook_receiver
from support.clocks import FakeClock
from support.notifications import make_notification
from support.sink_workers import sink_worker

from sentinel.model.delivery import Response
from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.notify import retry
from sentinel.sinks.slack import Slack

HOUR_SECONDS = 3600.0


@pytest.fixture
def fixture(tmp_path):
    with sink_worker(tmp_path) as fixture:
        yield fixture


@pytest.mark.fault("D2", "D17")
def test_an_error_of_tls_is_retried_at_growing_intervals(fixture):
    """The URL is HTTPS and the receiver has no TLS."""
    fixture.worker.sink = Slack(url=fixture.receiver.url.replace("http:", "https:"))
    fixture.enqueue(make_notification())
    delays = []
    for _ in range(10):
        fixture.deliver_next(after=300.0)
        state, _, delay, error = fixture.row()
        delays.append(delay)

    assert (state, error[:3]) == ("queued", "SSL")
    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 150, 150]


@pytest.mark.fault("D17")
@pytest.mark.parametrize(
    "error",
    [
        "SSLEOFError",
        "SSLZeroReturnError",
        "SSLError",
        "SSLCertVerificationError",
        "ConnectionError",
    ],
)
def test_every_error_of_a_connection_has_the_same_intervals(error):
    assert retry.retry_delay_seconds(Response(error=error), 1, 0.5) == 1.0


@pytest.mark.fault("D3")
@pytest.mark.parametrize(
    ("header", "delay"),
    [("30", 30.5), ("2.5", 3.0), ("garbage", 1.0), ("1" + "0" * 20, 3600.5), ("-4", 1.0)],
)
def test_retry_after_delays_every_notification(fixture, header, delay):
    """The delay applies to the rejected notification and to later ones."""
    fixture.receiver.script = [webhook_receiver.status(429, Retry_After=header)]
    fixture.enqueue(make_notification())
    fixture.deliver_next()
    fixture.enqueue(make_notification(episode=2))
    fixture.deliver_next(after=delay - 0.51)
    if delay > 1:
        fixture.enqueue(make_notification(episode=3))
        fixture.deliver_next(after=0)
        assert len(fixture.receiver.requests) == 1

    for _ in range(3):
        fixture.deliver_next(after=1.0)
    assert fixture.row()[0] == "delivered"


@pytest.mark.fault("D3")
def test_retry_after_applies_after_a_restart(fixture):
    fixture.receiver.script = [webhook_receiver.status(429, Retry_After="30")]
    fixture.enqueue(make_notification(), make_notification(episode=2))
    fixture.deliver_next()
    fixture.worker = replace(fixture.worker)
    fixture.deliver_next(after=29)

    assert len(fixture.receiver.requests) == 1


@pytest.mark.fault("D1")
def test_delays_grow_to_five_minutes(fixture):
    fixture.receiver.default = webhook_receiver.status(500)
    fixture.enqueue(make_notification())
    delays = []
    for _ in range(12):
        fixture.deliver_next(after=301)
        delays.append(fixture.row()[2])

    assert delays == [1, 2, 4, 8, 16, 32, 64, 128, 150, 150, 150, 150]


@pytest.mark.fault("D1")
@pytest.mark.parametrize(
    ("severity", "max_age"),
    [
        (Severity.CRITICAL, 24 * HOUR_SECONDS),
        (Severity.WARNING, HOUR_SECONDS),
        (Severity.INFO, HOUR_SECONDS),
    ],
)
def test_a_notification_is_given_up_at_its_maximum_age(fixture, severity, max_age):
    fixture.receiver.default = webhook_receiver.status(500)
    fixture.enqueue(make_notification(severity=severity))
    fixture.deliver_next(after=max_age - 1)
    assert fixture.row()[0] == "queued"
    fixture.deliver_next(after=2)

    assert fixture.row()[0] == "dead"


@pytest.mark.fault("D11")
def test_requests_are_at_least_a_second_apart(fixture):
    """Slack allows one message per second."""
    fixture.enqueue(*(make_notification(episode=n) for n in range(1, 5)))
    for _ in range(20):
        fixture.deliver_next(after=0.25)

    assert len(fixture.receiver.requests) == 4
    fixture.enqueue(*(make_notification(episode=n) for n in range(5, 25)))
    for _ in range(40):
        fixture.deliver_next(after=0.25)
    assert 13 <= len(fixture.receiver.requests) <= 15


@pytest.mark.fault("T14")
@pytest.mark.parametrize("jump", [-0.5 * HOUR_SECONDS, 48 * HOUR_SECONDS])
def test_a_clock_that_is_set_changes_no_age_and_no_delay(fixture, jump):
    monotonic = fixture.worker.monotonic = FakeClock(100.0)
    fixture.receiver.default = webhook_receiver.status(503, Retry_After="20")
    fixture.enqueue(make_notification())
    fixture.deliver_next(after=0.0)
    fixture.clock.now += jump
    fixture.deliver_next(after=0.0)
    assert fixture.row()[:3] == ("queued", 1, 20.5)

    fixture.receiver.default = webhook_receiver.ok()
    monotonic.now += 21.0
    fixture.deliver_next(after=21.0)
    assert fixture.row()[:2] == ("delivered", 2)


def test_a_clock_set_back_does_not_stop_the_worker(fixture):
    fixture.receiver.script = [webhook_receiver.status(429, Retry_After="60")]
    fixture.enqueue(make_notification())
    fixture.deliver_next()
    fixture.deliver_next(after=-30 * 24 * HOUR_SECONDS)

    assert fixture.row()[0] == "delivered"


@pytest.mark.fault("D11")
def test_after_most_of_a_day_each_case_is_one_message_at_a_limited_rate(fixture):
    """22 hours in which 20 critical cases opened and half of them ended."""
    fixture.receiver.default = webhook_receiver.status(503)
    for episode in range(20):
        fixture.enqueue(make_notification(episode=episode))
    fixture.deliver_all(after=300, tries=20)
    for episode in range(0, 20, 2):
        fixture.enqueue(make_notification(NotificationReason.RESOLVED, episode=episode))
    fixture.clock.now += 20 * HOUR_SECONDS
    fixture.receiver.default, began = webhook_receiver.ok(), fixture.clock.now
    while len(fixture.receiver.accepted) < 20 and fixture.clock.now < began + HOUR_SECONDS:
        fixture.deliver_next(after=0.25)

    headlines = [r.json["blocks"][0]["text"]["text"] for r in fixture.receiver.accepted]
    assert sorted(headline.split()[1] for headline in headlines) == [
        *["Critical:"] * 10,
        *["Resolved:"] * 10,
    ]
    assert 18 <= fixture.clock.now - began < 60
    fixture.deliver_all(tries=100)
    assert len(fixture.receiver.accepted) == 20


@pytest.mark.fault("D11")
def test_after_an_outage_the_most_severe_is_first_and_incidents_in_order(fixture):
    warning = make_notification(detector="loss_plateau", severity=Severity.WARNING)
    fixture.receiver.default = webhook_receiver.status(500)
    fixture.enqueue(warning, make_notification())
    for _ in range(8):
        fixture.deliver_next(after=301)
    fixture.enqueue(make_notification(NotificationReason.RESOLVED))
    fixture.receiver.default, before = webhook_receiver.ok(), len(fixture.receiver.requests)
    for _ in range(8):
        fixture.deliver_next(after=301)

    headlines = [r.json["blocks"][0]["text"]["text"] for r in fixture.receiver.requests[before:]]
    assert [headline.split()[1] for headline in headlines] == ["Resolved:", "Warning:"]
