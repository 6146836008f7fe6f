"""Tests of the outbox: each notification is queued once, claimed once and never deleted."""

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


def outcome(connection, key):
    query = "select state, tries, next_at, last_error from outbox where key = ?"
    return connection.execute(query, [key]).fetchone()


def delivery_order(connection, sink="slack"):
    """Names of the due notifications in order of delivery."""
    names = []
    while entry := outbox.claim(connection, sink, NOW):
        outbox.mark_delivered(connection, entry.key)
        names.append(decode(entry.notification_json).name.removeprefix("grpo-7b/"))
    return names


def test_a_notification_is_queued_once_for_each_sink(connection):
    assert outbox.enqueue(connection, make_notification(), ["slack", "webhook"], NOW) == 2
    assert outbox.enqueue(connection, make_notification(), ["slack", "webhook"], NOW + 9) == 0
    assert delivery_order(connection) == ["kl_blowup#1:opened"]
    assert outbox.enqueue(connection, make_notification(), ["slack"], NOW + 99) == 0
    assert delivery_order(connection) == []


def test_reason_episode_severity_rank_and_run_identify_a_notification(connection):
    notifications = [
        make_notification(),
        make_notification(NotificationReason.RESOLVED),
        make_notification(NotificationReason.ESCALATED),
        make_notification(NotificationReason.ESCALATED, severity=Severity.WARNING),
        make_notification(episode=2),
        make_notification(rank=0),
        make_notification(run="another"),
    ]

    keys = {outbox.idempotency_key(each, sink) for each in notifications for sink in "ab"}
    assert len(keys) == 14


def test_a_rollback_removes_the_notification(connection):
    connection.execute("begin")
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    connection.execute("rollback")

    assert outbox.claim(connection, "slack", NOW) is None


def test_the_most_severe_then_oldest_notification_is_first(connection):
    for name, severity in [("a", "info"), ("b", "warning"), ("c", "critical"), ("d", "critical")]:
        notification = make_notification(detector=name, severity=Severity(severity))
        outbox.enqueue(connection, notification, ["slack"], NOW)

    assert delivery_order(connection) == ["c#1:opened", "d#1:opened", "b#1:opened", "a#1:opened"]


def test_notifications_of_one_incident_keep_their_order(connection):
    """The later ones are more severe and wait nevertheless."""
    outbox.enqueue(connection, make_notification(severity=Severity.WARNING), ["slack"], NOW)
    outbox.enqueue(connection, make_notification(NotificationReason.ESCALATED), ["slack"], NOW)
    outbox.enqueue(connection, make_notification(NotificationReason.RESOLVED), ["slack"], NOW)
    first = outbox.claim(connection, "slack", NOW)
    outbox.reschedule(connection, first.key, NOW + 60, "HTTP 500")

    assert outbox.claim(connection, "slack", NOW) is None
    outbox.reschedule(connection, first.key, NOW, "HTTP 500")
    assert delivery_order(connection) == [
        "kl_blowup#1:opened",
        "kl_blowup#1:escalated-critical",
        "kl_blowup#1:resolved",
    ]


def test_a_delayed_notification_does_not_delay_other_incidents(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    outbox.reschedule(connection, outbox.claim(connection, "slack", NOW).key, NOW + 60, "HTTP 500")
    outbox.enqueue(connection, make_notification(episode=2), ["slack"], NOW)

    assert delivery_order(connection) == ["kl_blowup#2:opened"]


def test_a_notification_is_claimed_once(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)

    assert outbox.claim(connection, "slack", NOW).tries == 1
    assert outbox.claim(connection, "slack", NOW) is None


def test_an_interrupted_notification_is_queued_again(connection, tmp_path):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    key = outbox.claim(connection, "slack", NOW).key
    restarted = connect(tmp_path / "sentinel.db")

    assert outbox.requeue_interrupted(restarted) == 1
    (text,) = restarted.execute("select notification from outbox").fetchone()
    entry = outbox.OutboxEntry(key, text, "critical", 2, NOW, "")
    assert outbox.claim(restarted, "slack", NOW) == entry
    restarted.close()


def test_a_clock_set_back_delays_at_most_by_the_longest_retry_delay(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)

    assert outbox.claim(connection, "slack", NOW - outbox.MAX_RETRY_DELAY_SECONDS / 2) is None
    assert outbox.claim(connection, "slack", NOW - outbox.MAX_RETRY_DELAY_SECONDS * 2) is not None


def test_postponing_a_sink_delays_only_its_notifications(connection):
    outbox.enqueue(connection, make_notification(), ["slack", "webhook"], NOW)
    outbox.enqueue(connection, make_notification(episode=2), ["slack"], NOW)
    outbox.postpone_sink(connection, "slack", NOW + 30)

    assert delivery_order(connection) == []
    assert outbox.next_attempt_time(connection, "slack") == NOW + 30
    assert delivery_order(connection, "webhook") == ["kl_blowup#1:opened"]


def test_a_damaged_row_does_not_delay_the_others(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    connection.execute("update outbox set notification = 'no json', severity = 'info'")
    outbox.enqueue(connection, make_notification(episode=2), ["slack"], NOW)

    assert decode(outbox.claim(connection, "slack", NOW).notification_json).incident.episode == 2
    assert outbox.claim(connection, "slack", NOW).notification_json == "no json"


def test_rows_are_counted_by_sink_and_state(connection):
    for episode in range(1, 4):
        outbox.enqueue(connection, make_notification(episode=episode), ["slack", "webhook"], NOW)
    outbox.mark_delivered(connection, outbox.claim(connection, "slack", NOW).key)
    key = outbox.claim(connection, "slack", NOW).key
    outbox.mark_dead(connection, key, "HTTP 404")

    assert outcome(connection, key) == ("dead", 1, NOW, "HTTP 404")
    assert outbox.count_by_state(connection) == {
        ("slack", "delivered"): 1,
        ("slack", "dead"): 1,
        ("slack", "queued"): 1,
        ("webhook", "queued"): 3,
    }
    assert outbox.count_undelivered(connection, ["slack", "webhook"]) == 4
    assert outbox.count_undelivered(connection, ["slack"]) == 1
