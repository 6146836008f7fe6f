"""Lane: when the next request may go out, and until when. The clock is the test's."""

from dataclasses import replace

import pytest
from support import webhook_receiver
from support.notifications import make_notification
from support.sink_workers import lane_on_bench

from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.sinks.slack import Slack

HOUR = 3600.0


@pytest.fixture
def bench(tmp_path):
    with lane_on_bench(tmp_path) as bench:
        yield bench


def test_what_only_a_person_can_mend_is_asked_every_five_minutes(bench):
    """A receiver without the TLS that its address promises."""
    bench.lane.sink = Slack(url=bench.there.url.replace("http:", "https:"))
    bench.enqueue(make_notification())
    bench.deliver_next()

    state, tries, wait, error = bench.row()
    assert (state, tries, wait, error[:3]) == ("queued", 1, 300.0, "SSL")


@pytest.mark.parametrize(
    ("header", "silence"),
    [("30", 30.5), ("2.5", 3.0), ("garbage", 1.0), ("1" + "0" * 20, 3600.5), ("-4", 1.0)],
)
def test_nothing_is_sent_before_the_receiver_wants_it(bench, header, silence):
    """Neither the page that was refused nor one that comes up meanwhile."""
    bench.there.script = [webhook_receiver.status(429, Retry_After=header)]
    bench.enqueue(make_notification())
    bench.deliver_next()
    bench.enqueue(make_notification(episode=2))
    bench.deliver_next(after=silence - 0.51)
    if silence > 1:
        bench.enqueue(make_notification(episode=3))
        bench.deliver_next(after=0)
        assert len(bench.there.requests) == 1

    for _ in range(3):
        bench.deliver_next(after=1.0)
    assert bench.row()[0] == "delivered"


def test_a_silence_asked_for_outlasts_the_agent(bench):
    bench.there.script = [webhook_receiver.status(429, Retry_After="30")]
    bench.enqueue(make_notification(), make_notification(episode=2))
    bench.deliver_next()
    bench.lane = replace(bench.lane)
    bench.deliver_next(after=29)

    assert len(bench.there.requests) == 1


def test_waits_grow_to_five_minutes_and_no_further(bench):
    bench.there.default = webhook_receiver.status(500)
    bench.enqueue(make_notification())
    waits = []
    for _ in range(12):
        bench.deliver_next(after=301)
        waits.append(bench.row()[2])

    assert waits == [1, 2, 4, 8, 16, 32, 64, 128, 150, 150, 150, 150]


@pytest.mark.parametrize(
    ("severity", "patience"),
    [(Severity.CRITICAL, 24 * HOUR), (Severity.WARNING, HOUR), (Severity.INFO, HOUR)],
)
def test_a_page_is_given_up_when_it_is_too_old(bench, severity, patience):
    bench.there.default = webhook_receiver.status(500)
    bench.enqueue(make_notification(severity=severity))
    bench.deliver_next(after=patience - 1)
    assert bench.row()[0] == "queued"
    bench.deliver_next(after=2)

    assert bench.row()[0] == "dead"


def test_messages_keep_their_distance(bench):
    """One a second to one receiver, as Slack allows."""
    bench.enqueue(*(make_notification(episode=n) for n in range(1, 5)))
    for _ in range(20):
        bench.deliver_next(after=0.25)

    assert len(bench.there.requests) == 4
    bench.enqueue(*(make_notification(episode=n) for n in range(5, 25)))
    for _ in range(40):
        bench.deliver_next(after=0.25)
    assert 13 <= len(bench.there.requests) <= 15


def test_a_clock_set_back_does_not_silence_the_lane(bench):
    bench.there.script = [webhook_receiver.status(429, Retry_After="60")]
    bench.enqueue(make_notification())
    bench.deliver_next()
    bench.deliver_next(after=-30 * 24 * HOUR)

    assert bench.row()[0] == "delivered"


def test_an_outage_ends_with_the_loudest_first_and_in_order(bench):
    """A day in which the receiver was gone: what still counts arrives, each page once."""
    warning = make_notification(detector="loss_plateau", severity=Severity.WARNING)
    bench.there.default = webhook_receiver.status(500)
    bench.enqueue(warning, make_notification())
    for _ in range(8):
        bench.deliver_next(after=301)
    bench.enqueue(make_notification(NotificationReason.RESOLVED))
    bench.there.default, before = webhook_receiver.ok(), len(bench.there.requests)
    for _ in range(8):
        bench.deliver_next(after=301)

    heads = [r.json["blocks"][0]["text"]["text"] for r in bench.there.requests[before:]]
    assert [head.split(":")[2].strip() for head in heads] == [
        "CRITICAL",
        "RESOLVED",
        "WARNING",
    ]
