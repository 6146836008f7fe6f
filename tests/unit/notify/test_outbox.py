"""Outbox: a page is queued once, claimed by one, and never forgotten."""

import pytest
from support.notifications import NOW, make_notification

from sentinel.model.finding import Severity
from sentinel.model.notification import NotificationReason
from sentinel.notify import outbox
from sentinel.notify.notification_codec import decode
from sentinel.store.database import connect


@pytest.fixture
def connection(tmp_path):
    connection = connect(tmp_path / "sentinel.db")
    yield connection
    connection.close()


def state(connection, key):
    query = "select state, tries, next_at, last_error from outbox where key = ?"
    return connection.execute(query, [key]).fetchone()


def order(connection, sink="slack"):
    """Names of all pages in the order in which they would be delivered."""
    names = []
    while entry := outbox.claim(connection, sink, NOW):
        outbox.mark_delivered(connection, entry.key)
        names.append(decode(entry.notification_json).name.removeprefix("grpo-7b/"))
    return names


def test_a_page_is_queued_once_for_each_sink_however_often_it_is_told(connection):
    assert outbox.enqueue(connection, make_notification(), ["slack", "webhook"], NOW) == 2
    assert outbox.enqueue(connection, make_notification(), ["slack", "webhook"], NOW + 9) == 0
    assert order(connection) == ["kl_blowup#1:opened"]
    assert outbox.enqueue(connection, make_notification(), ["slack"], NOW + 99) == 0
    assert order(connection) == []


def test_pages_of_another_reason_episode_or_severity_are_other_pages(connection):
    others = [
        make_notification(),
        make_notification(NotificationReason.RESOLVED),
        make_notification(NotificationReason.ESCALATED),
        make_notification(NotificationReason.ESCALATED, severity=Severity.WARNING),
        make_notification(episode=2),
        make_notification(rank=0),
        make_notification(run="another"),
    ]

    assert len({outbox.idempotency_key(told, sink) for told in others for sink in "ab"}) == 14


def test_a_page_exists_only_if_its_transaction_was_committed(connection):
    connection.execute("begin")
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    connection.execute("rollback")

    assert outbox.claim(connection, "slack", NOW) is None


def test_the_loudest_goes_first_and_within_it_the_oldest(connection):
    for name, severity in [("a", "info"), ("b", "warning"), ("c", "critical"), ("d", "critical")]:
        told = make_notification(detector=name, severity=Severity(severity))
        outbox.enqueue(connection, told, ["slack"], NOW)

    assert order(connection) == ["c#1:opened", "d#1:opened", "b#1:opened", "a#1:opened"]


def test_nobody_hears_of_an_end_before_the_beginning(connection):
    """Pages of one episode keep their order, though the later ones are louder."""
    outbox.enqueue(connection, make_notification(severity=Severity.WARNING), ["slack"], NOW)
    outbox.enqueue(connection, make_notification(NotificationReason.ESCALATED), ["slack"], NOW)
    outbox.enqueue(connection, make_notification(NotificationReason.RESOLVED), ["slack"], NOW)
    first = outbox.claim(connection, "slack", NOW)
    outbox.reschedule(connection, first.key, NOW + 60, "HTTP 500")

    assert outbox.claim(connection, "slack", NOW) is None
    outbox.reschedule(connection, first.key, NOW, "HTTP 500")
    assert order(connection) == [
        "kl_blowup#1:opened",
        "kl_blowup#1:escalated-critical",
        "kl_blowup#1:resolved",
    ]


def test_a_page_that_waits_lets_other_episodes_pass(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    outbox.reschedule(connection, outbox.claim(connection, "slack", NOW).key, NOW + 60, "HTTP 500")
    outbox.enqueue(connection, make_notification(episode=2), ["slack"], NOW)

    assert order(connection) == ["kl_blowup#2:opened"]


def test_a_claimed_page_is_nobody_elses(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)

    assert outbox.claim(connection, "slack", NOW).tries == 1
    assert outbox.claim(connection, "slack", NOW) is None


def test_what_was_being_sent_at_a_kill_is_sent_again(connection, tmp_path):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    key = outbox.claim(connection, "slack", NOW).key
    again = connect(tmp_path / "sentinel.db")

    assert outbox.requeue_interrupted(again) == 1
    assert outbox.claim(again, "slack", NOW) == outbox.OutboxEntry(
        key, again.execute("select notification from outbox").fetchone()[0], "critical", 2, NOW, ""
    )
    again.close()


def test_a_clock_set_back_delays_nothing_by_more_than_the_longest_wait(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)

    assert outbox.claim(connection, "slack", NOW - outbox.MAX_RETRY_DELAY_SECONDS / 2) is None
    assert outbox.claim(connection, "slack", NOW - outbox.MAX_RETRY_DELAY_SECONDS * 2) is not None


def test_holding_a_sink_puts_off_all_of_it_and_nothing_else(connection):
    outbox.enqueue(connection, make_notification(), ["slack", "webhook"], NOW)
    outbox.enqueue(connection, make_notification(episode=2), ["slack"], NOW)
    outbox.postpone_sink(connection, "slack", NOW + 30)

    assert order(connection) == []
    assert outbox.next_attempt_time(connection, "slack") == NOW + 30
    assert order(connection, "webhook") == ["kl_blowup#1:opened"]


def test_a_damaged_row_does_not_hold_up_the_others(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    connection.execute("update outbox set page = 'no json', severity = 'info'")
    outbox.enqueue(connection, make_notification(episode=2), ["slack"], NOW)

    assert decode(outbox.claim(connection, "slack", NOW).notification_json).incident.episode == 2
    assert outbox.claim(connection, "slack", NOW).notification_json == "no json"


def test_counts_tell_every_row_by_sink_and_state(connection):
    for episode in range(1, 4):
        outbox.enqueue(connection, make_notification(episode=episode), ["slack", "webhook"], NOW)
    outbox.mark_delivered(connection, outbox.claim(connection, "slack", NOW).key)
    key = outbox.claim(connection, "slack", NOW).key
    outbox.mark_dead(connection, key, "HTTP 404")

    assert state(connection, key) == ("dead", 1, NOW, "HTTP 404")
    assert outbox.count_by_state(connection) == {
        ("slack", "delivered"): 1,
        ("slack", "dead"): 1,
        ("slack", "queued"): 1,
        ("webhook", "queued"): 3,
    }
    assert outbox.count_undelivered(connection, ["slack", "webhook"]) == 4
    assert outbox.count_undelivered(connection, ["slack"]) == 1
