"""Pings of a healthy run: start, success, failure, and silence if the agent hangs."""

from dataclasses import replace

import pytest
from pydantic import SecretStr
from support import webhook_receiver
from support.rank_processes import until
from support.results import RUN, make_incident
from support.webhook_receiver import Receiver

from sentinel.model.finding import Severity
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.notify import health_ping
from sentinel.notify.health_ping import HealthPing, PingTiming
from sentinel.pipeline.engine import Result

TIMEOUT_SECONDS = 240.0
FAST = PingTiming(interval=0.05, retry=0.02, deadline=TIMEOUT_SECONDS)
RARE = PingTiming(interval=600.0, retry=0.02, deadline=TIMEOUT_SECONDS)


def record(event, **attributes):
    return Result(Record(RUN, WHOLE_RUN, 1, 0.0, event, attributes=attributes))


def notification(reason=NotificationReason.OPENED, severity=Severity.CRITICAL, number=1):
    incident = replace(make_incident("kl_blowup", severity), episode=number)
    result = record(Event.STEP)
    return replace(result, case_notifications=(Notification(reason, incident, 1, 0.0),))


@pytest.fixture
def receiver():
    with Receiver() as receiver:
        yield receiver


@pytest.fixture
def start(receiver):
    """Returns a function that starts the pings, which end after the test."""
    started = []

    def start(timing=RARE):
        ping = HealthPing(SecretStr(f"{receiver.url}?create=1"), timing)
        started.append(ping)
        ping.start()
        return ping

    yield start
    for ping in started:
        ping.stop(TIMEOUT_SECONDS)
        assert not ping._thread.is_alive()


def pings(receiver):
    """What follows the URL of the check."""
    paths = [request.path for request in list(receiver.requests)]
    assert all(path.endswith("?create=1") for path in paths)
    return [path.partition("/services/T/B/X")[2].removesuffix("?create=1") for path in paths]


def expect(receiver, *expected):
    until(lambda: len(receiver.requests) >= len(expected), TIMEOUT_SECONDS, f"pings {expected}")
    assert pings(receiver) == [*expected]


def test_start_critical_cases_and_end_are_reported(receiver, start):
    ping = start()
    ping.update(record(Event.START))
    ping.update(notification(severity=Severity.WARNING))
    ping.update(notification(NotificationReason.ESCALATED))
    ping.update(notification(NotificationReason.UPDATED))
    ping.update(record(Event.STOP, outcome="finished"))

    expect(receiver, "/start", "/fail", "/fail")


@pytest.mark.parametrize(
    ("outcome", "expected"),
    [("finished", ""), ("interrupted", ""), ("exception", "/fail"), ("died", "/fail")],
)
def test_a_run_that_ends_otherwise_than_well_is_a_failure(receiver, start, outcome, expected):
    start().update(record(Event.STOP, outcome=outcome))

    expect(receiver, expected)


@pytest.mark.fault("A10")
def test_a_healthy_run_pings_regularly_and_a_critical_case_stops_that(receiver, start):
    ping = start(FAST)
    ping.update(record(Event.START))
    until(lambda: len(receiver.requests) >= 4, TIMEOUT_SECONDS, "regular pings")
    ping.update(notification())
    until(lambda: "/fail" in pings(receiver), TIMEOUT_SECONDS, "a failure")
    for _ in range(20):
        assert ping._regular_ping() is None
    assert pings(receiver)[-1] == "/fail"
    ping.update(notification(NotificationReason.RESOLVED))
    until(lambda: pings(receiver)[-1] == "", TIMEOUT_SECONDS, "regular pings again")


def test_nothing_is_sent_before_the_run_starts_or_while_the_agent_hangs(monkeypatch, start):
    ping = start()
    assert ping._regular_ping() is None
    ping.update(record(Event.START))
    assert ping._regular_ping() == ""
    monkeypatch.setattr(health_ping, "_HUNG_AGENT_SECONDS", 0.0)
    assert ping._regular_ping() is None


def test_a_restarted_agent_continues(receiver, start):
    ping = start(FAST)
    ping.restore([notification().case_notifications[0]], is_running=True)
    assert ping._regular_ping() is None
    ping.update(notification(NotificationReason.RESOLVED))
    until(lambda: receiver.requests, TIMEOUT_SECONDS, "regular pings")
    assert set(pings(receiver)) == {""}


def test_a_ping_that_fails_is_repeated_in_order(receiver, start):
    receiver.script = [webhook_receiver.status(500), webhook_receiver.hang_up()]
    ping = start()
    ping.update(record(Event.START))
    ping.update(notification())

    expect(receiver, "/start", "/start", "/start", "/fail")


def test_update_never_waits_for_the_receiver(receiver):
    receiver.default = webhook_receiver.hang()
    ping = HealthPing(SecretStr(receiver.url), replace(RARE, deadline=0.2))
    ping.start()
    for number in range(1000):
        ping.update(notification(number=number))
        ping.confirm_agent()
    assert len(ping._waiting) <= health_ping._MAX_WAITING
    ping.stop(TIMEOUT_SECONDS)
    assert not ping._thread.is_alive()


def test_the_url_is_secret(caplog, receiver, start):
    receiver.script = [webhook_receiver.status(404)]
    ping = start()
    ping.update(record(Event.START))
    until(lambda: len(receiver.requests) >= 2, TIMEOUT_SECONDS, "a repeated ping")

    assert "HTTP 404" in caplog.text
    assert "services" not in caplog.text + repr(ping.__dict__)
