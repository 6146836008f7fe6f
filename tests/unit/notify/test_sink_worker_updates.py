"""Tests of messages that are kept up to date, of failover, refresh and the limit per hour."""

from dataclasses import replace

import pytest
from support import webhook_receiver
from support.notifications import make_notification
from support.sink_workers import sink_worker
from support.updating_sinks import RefreshedUpdatingSink, UpdatingSink, new_messages

from sentinel.config.route import Route
from sentinel.model.delivery import HttpRequest
from sentinel.model.finding import Severity
from sentinel.model.incident import Resolution
from sentinel.model.notification import NotificationReason
from sentinel.notify import outbox
from sentinel.notify.recipients import Recipients
from sentinel.notify.sink_worker import DeliveryTiming
from sentinel.store.database import transaction

WARNING = make_notification(severity=Severity.WARNING)
ESCALATED = make_notification(NotificationReason.ESCALATED)
RESOLVED = make_notification(NotificationReason.RESOLVED)


def make_update(number, **changes):
    return replace(make_notification(NotificationReason.UPDATED, **changes), number=number)


@pytest.fixture
def fixture(tmp_path):
    with sink_worker(tmp_path) as fixture:
        yield fixture


@pytest.fixture
def updating(fixture):
    fixture.worker.sink = UpdatingSink(fixture.receiver.url)
    fixture.receiver.default = webhook_receiver.accept_with_id()
    return fixture


def everywhere(*sinks):
    return Recipients({name: Route() for name in sinks})


def bodies(fixture):
    return [request.json for request in fixture.receiver.accepted]


def test_a_fault_is_one_message_per_severity_however_often_it_changes(updating):
    updating.enqueue(WARNING)
    updating.deliver_all(tries=3)
    for number in range(1, 21):
        updating.enqueue(make_update(number))
        updating.deliver_all(tries=2)
    updating.enqueue(ESCALATED)
    updating.deliver_all(tries=3)
    updating.enqueue(RESOLVED)
    updating.deliver_all(tries=3)

    assert new_messages(updating.receiver) == [("opened", "warning"), ("escalated", "critical")]
    first, *changes, escalated, resolved = bodies(updating)
    assert {each["changes"] for each in changes} == {first["id"]}
    assert (len(changes), resolved["changes"]) == (20, escalated["id"])


def test_an_update_survives_the_agent(updating):
    updating.enqueue(WARNING)
    updating.deliver_next()
    updating.enqueue(make_update(1))
    updating.worker = replace(updating.worker)
    outbox.claim(updating.connection, "slack", updating.clock.now)
    outbox.requeue_interrupted(updating.connection)
    updating.deliver_all(tries=3)

    first, update = bodies(updating)
    assert update["changes"] == first["id"]


def test_a_message_that_was_deleted_is_sent_again(updating):
    updating.enqueue(WARNING)
    updating.deliver_next()
    updating.receiver.script = [webhook_receiver.status(404)]
    updating.enqueue(make_update(1))
    updating.deliver_all(tries=4)
    updating.enqueue(RESOLVED)
    updating.deliver_all(tries=3)

    assert new_messages(updating.receiver) == [("opened", "warning"), ("updated", "critical")]
    assert bodies(updating)[-1]["changes"] == bodies(updating)[1]["id"]


@pytest.mark.fault("D11")
def test_after_an_outage_a_case_is_one_message(updating):
    updating.receiver.default = webhook_receiver.status(500)
    updating.enqueue(WARNING)
    updating.deliver_all(after=30)
    for number in (1, 2):
        updating.enqueue(make_update(number, summary=f"New {number}."))
    updating.enqueue(ESCALATED, make_update(3, summary="Newest."))
    updating.receiver.default = webhook_receiver.accept_with_id()
    updating.deliver_all(after=30)

    (message,) = bodies(updating)
    assert (message["reason"], message["severity"]) == ("opened", "critical")
    assert message["summary"] == "Newest."


@pytest.mark.fault("D11")
@pytest.mark.parametrize("failure", [webhook_receiver.status(503), webhook_receiver.status(504)])
def test_after_an_outage_a_case_that_lasted_to_the_end_is_an_alert_and_its_end(updating, failure):
    """A gateway that waits in vain responds 504: the receiver may have the message."""
    ended = make_notification(NotificationReason.ENDED)
    incident = replace(ended.incident, resolution=Resolution.TRAINING_FINISHED)
    over = replace(
        RESOLVED.incident, resolution=Resolution.STARTED_AGAIN, ended=Resolution.TRAINING_FINISHED
    )
    updating.receiver.default = failure
    for each in (
        WARNING,
        make_update(1),
        ESCALATED,
        make_update(2),
        replace(ended, incident=incident),
        replace(RESOLVED, incident=over),
    ):
        updating.enqueue(each)
        updating.deliver_all(after=300, tries=6)
    updating.receiver.default = webhook_receiver.accept_with_id()
    updating.deliver_all(after=300, tries=6)

    first, end = bodies(updating)
    assert first["reason"] in ("opened", "ended")
    assert (first["severity"], first["changes"]) == ("critical", None)
    assert (end["reason"], end["changes"]) == ("resolved", first["id"])


def test_a_critical_notification_does_not_wait_behind_its_warning(fixture):
    fixture.receiver.script = [webhook_receiver.status(500)] * 8
    fixture.enqueue(WARNING)
    fixture.deliver_all(after=300, tries=8)
    fixture.enqueue(ESCALATED)
    fixture.deliver_next(after=1)

    assert len(fixture.receiver.accepted) == 1


def test_the_first_success_of_a_receiver_retries_its_queue_at_once(fixture):
    fixture.receiver.script = [webhook_receiver.status(500)] * 16
    fixture.enqueue(*(make_notification(episode=n) for n in (1, 2)))
    fixture.deliver_all(after=151, tries=16)
    fixture.enqueue(make_notification(episode=3))
    fixture.deliver_all(tries=3)

    assert len(fixture.receiver.accepted) == 3


def test_a_follow_up_is_sent_after_an_accepted_request_only(updating):
    class FollowedSink(UpdatingSink):
        def render(self, notification, delivery_id, receipt):
            request = super().render(notification, delivery_id, receipt)
            return replace(request, follow_up=HttpRequest(f"{self.url}/follow", b'{"id": "2"}'))

    updating.worker.sink = FollowedSink(updating.receiver.url)
    updating.receiver.script = [webhook_receiver.status(500)]
    updating.enqueue(WARNING)
    updating.deliver_all(tries=5)

    paths = [request.path.rpartition("/")[2] for request in updating.receiver.requests]
    assert paths == ["X", "X", "follow"]


@pytest.mark.fault("D5")
def test_what_a_receiver_rejects_goes_to_the_next_sink(fixture):
    passed_on = []
    fixture.worker = replace(
        fixture.worker,
        recipients=everywhere("mail", "slack", "pager"),
        on_fail_over=lambda: passed_on.append(1),
    )
    fixture.receiver.default = webhook_receiver.status(410)
    fixture.enqueue(make_notification())
    fixture.deliver_all(tries=3)

    assert passed_on == [1]
    rows = fixture.connection.execute("select sink, state from outbox order by rowid").fetchall()
    assert rows == [("slack", "dead"), ("pager", "queued")]
    (problem,) = outbox.delivery_problems(fixture.connection)
    assert (problem.sink, problem.given_up, problem.last_error) == ("slack", 1, "HTTP 410")


def test_a_sink_that_cannot_render_is_given_up_and_passed_on(fixture):
    class BrokenSink(UpdatingSink):
        def render(self, *_):
            raise KeyError("CANARY")

    fixture.worker = replace(
        fixture.worker,
        sink=BrokenSink(fixture.receiver.url),
        recipients=everywhere("slack", "pager"),
    )
    fixture.enqueue(make_notification())
    fixture.deliver_all(tries=2)

    assert fixture.row()[3] == "KeyError"
    assert outbox.claim(fixture.connection, "pager", fixture.clock.now) is not None


def test_a_firing_case_is_sent_again_until_it_is_resolved(updating):
    updating.worker.sink = RefreshedUpdatingSink(updating.receiver.url)
    updating.enqueue(make_notification(), make_notification(episode=2))
    updating.deliver_all(tries=130)
    assert len(updating.receiver.requests) == 2 + 2 * 2

    updating.enqueue(RESOLVED, make_notification(NotificationReason.RESOLVED, episode=2))
    updating.deliver_all(tries=5)
    count = len(updating.receiver.requests)
    updating.deliver_all(tries=130)
    assert len(updating.receiver.requests) == count


def test_a_refresh_continues_after_a_restart_and_does_not_delay_notifications(updating):
    updating.worker.sink = RefreshedUpdatingSink(updating.receiver.url)
    updating.enqueue(make_notification())
    updating.deliver_all(tries=3)
    updating.worker = replace(updating.worker)
    updating.receiver.script = [webhook_receiver.status(500)]
    updating.deliver_next()
    updating.enqueue(make_notification(episode=2))
    updating.deliver_next()

    assert [each["reason"] for each in bodies(updating)] == ["opened", "opened"]
    assert len(updating.receiver.requests) == 3


def limited(fixture, limit):
    fixture.worker = replace(
        fixture.worker, timing=replace(DeliveryTiming(), max_per_hour=limit, deadline_seconds=5.0)
    )


def texts(fixture):
    return [request.body.decode() for request in fixture.receiver.accepted]


@pytest.mark.fault("D12")
def test_a_storm_is_a_few_messages_and_a_digest_with_the_exact_number(fixture):
    limited(fixture, 20)
    for episode in range(1, 301):
        fixture.enqueue(make_notification(episode=episode, severity=Severity.WARNING))
    fixture.deliver_all(tries=400)

    assert len(fixture.receiver.accepted) == 21
    assert "280 further notifications are summarised here" in texts(fixture)[-1]
    assert "KL blowup: 280" in texts(fixture)[-1]
    fixture.enqueue(*(make_notification(episode=n, severity=Severity.WARNING) for n in (301, 302)))
    fixture.deliver_all(tries=100)
    assert len(fixture.receiver.accepted) == 21, "the next digest is an hour later"
    fixture.deliver_all(after=60, tries=70)
    assert "2 further notifications are summarised here" in texts(fixture)[-1]


@pytest.mark.full
@pytest.mark.fault("D12")
def test_ten_thousand_alerts_are_twenty_messages_and_the_exact_number(fixture):
    limited(fixture, 20)
    with transaction(fixture.connection):
        for episode in range(1, 10_001):
            fixture.enqueue(make_notification(episode=episode, severity=Severity.WARNING))
    fixture.deliver_all(tries=150)

    assert len(fixture.receiver.accepted) == 21
    assert "9980 further notifications are summarised here" in texts(fixture)[-1]


@pytest.mark.fault("D12")
def test_nothing_critical_is_lost_in_a_storm(fixture):
    """It passes up to twice the limit; what exceeds that is named in the digest."""
    limited(fixture, 5)
    for episode in range(1, 51):
        fixture.enqueue(make_notification(episode=episode, severity=Severity.WARNING))
    fixture.deliver_all(tries=10)
    for episode in range(1, 9):
        fixture.enqueue(make_notification(episode=episode, detector="nan_or_inf"))
    fixture.deliver_all(tries=100)

    *sent, digest = texts(fixture)
    assert len(sent) == 10
    assert sum("nan_or_inf" in text or "Critical" in text for text in sent) == 5
    assert "48 further notifications" in digest
    assert "3 of them are critical" in digest
    assert "NaN or inf: 3" in digest


def test_the_end_of_a_case_in_a_digest_is_not_sent_and_others_wait_for_room(fixture):
    limited(fixture, 2)
    warnings = [make_notification(episode=n, severity=Severity.WARNING) for n in (1, 2, 3, 4, 5)]
    fixture.enqueue(*warnings)
    fixture.deliver_all(tries=10)
    for episode in (1, 2, 3, 4, 5):
        resolved = make_notification(
            NotificationReason.RESOLVED, episode=episode, severity=Severity.WARNING
        )
        fixture.enqueue(resolved)
    fixture.deliver_all(tries=100)

    sent = texts(fixture)
    assert sum("Resolved" in text for text in sent) == 2
    assert len(sent) == 5


def test_changes_of_messages_are_not_limited(updating):
    limited(updating, 1)
    updating.enqueue(WARNING)
    updating.deliver_all(tries=2)
    for number in range(1, 9):
        updating.enqueue(make_update(number))
        updating.deliver_all(tries=2)
    updating.enqueue(RESOLVED)
    updating.deliver_all(tries=3)

    assert len(bodies(updating)) == 10


def test_updates_and_ends_of_cases_in_a_digest_are_no_new_messages(updating):
    limited(updating, 2)
    episodes = range(1, 11)
    warnings = [make_notification(episode=n, severity=Severity.WARNING) for n in episodes]
    updating.enqueue(*warnings)
    updating.deliver_all(tries=20)
    updating.enqueue(*(make_update(1, episode=n, severity=Severity.WARNING) for n in episodes))
    updating.deliver_all(tries=40)
    updating.enqueue(
        *(
            make_notification(NotificationReason.RESOLVED, episode=n, severity=Severity.WARNING)
            for n in episodes
        )
    )
    updating.deliver_all(tries=100)

    assert new_messages(updating.receiver) == [("opened", "warning")] * 3
    assert len(bodies(updating)) == 3 + 2 * 2


@pytest.mark.fault("D11")
def test_cases_that_opened_and_ended_in_an_outage_are_new_messages_and_limited(updating):
    limited(updating, 2)
    for episode in range(1, 11):
        updating.enqueue(make_notification(episode=episode))
        updating.enqueue(make_notification(NotificationReason.RESOLVED, episode=episode))
    updating.deliver_all(tries=50)

    assert len(new_messages(updating.receiver)) == 4
    updating.deliver_all(after=3600, tries=3)
    assert len(new_messages(updating.receiver)) > 4


def test_the_age_of_an_end_that_waits_for_room_counts_from_then(fixture):
    """Else the first failure of the receiver would be the last try."""
    limited(fixture, 1)
    fixture.enqueue(*(make_notification(episode=n) for n in (1, 2)))
    fixture.deliver_all(tries=4)
    fixture.enqueue(make_notification(NotificationReason.RESOLVED, severity=Severity.WARNING))
    fixture.deliver_all(tries=2)
    fixture.receiver.script = [webhook_receiver.status(503)]
    fixture.deliver_next(after=3601)
    fixture.deliver_next(after=600)

    assert "Resolved" in texts(fixture)[-1]


def test_a_limit_that_cannot_be_checked_delays_the_notification(fixture):
    limited(fixture, 1)
    fixture.enqueue(WARNING)
    fixture.deliver_all(tries=2)
    fixture.enqueue(make_notification(episode=2, severity=Severity.WARNING))
    fixture.connection.execute(
        "create trigger full before update on outbox when new.state = 'digested'"
        " begin select raise(abort, 'disk full'); end"
    )
    with pytest.raises(Exception, match="disk full"):
        fixture.deliver_next(after=2)
    fixture.connection.execute("drop trigger full")
    fixture.deliver_all(tries=100)

    assert "1 further notification is summarised here" in texts(fixture)[-1]


def test_a_digest_is_not_sent_again(updating):
    """Nothing ends it, so the receiver has to."""
    limited(updating, 1)
    updating.worker.sink = RefreshedUpdatingSink(updating.receiver.url)
    updating.enqueue(WARNING, make_notification(episode=2, severity=Severity.WARNING))
    updating.deliver_all(tries=70)
    updating.enqueue(RESOLVED)
    updating.deliver_all(tries=200)

    summaries = [each["summary"] for each in bodies(updating)]
    assert sum("summarised here" in summary for summary in summaries) == 1
    assert len(summaries) > 2, "the case itself is sent again until it ends"
