"""A cause that replaces one that a receiver got is a message of its own, everywhere and once."""

from __future__ import annotations

from dataclasses import replace

import pytest
from support import webhook_receiver
from support.notifications import make_notification, with_diagnosis
from support.sink_workers import sink_worker
from support.updating_sinks import UpdatingSink, new_messages

from sentinel.model.finding import Severity
from sentinel.model.incident import Resolution
from sentinel.model.message import build_message
from sentinel.model.notification import NotificationReason
from sentinel.notify import outbox
from sentinel.notify.outbox import CORRECTION_HOLD_SECONDS
from sentinel.notify.received_cause import MAX_CORRECTIONS
from sentinel.store import notification_codec

TITLES = {"slow_data": "slow data loading", "slow_rank": "slow rank", "bad_batch": "bad batch"}


def make(reason=NotificationReason.OPENED, cause="", number=0, severity=Severity.WARNING):
    """A notification of one case with that cause."""
    notification = replace(make_notification(reason, severity=severity), number=number)
    if not cause:
        return notification
    return with_diagnosis(notification, others=(), cause=cause, title=TITLES[cause], severity=None)


def update(cause, number):
    return make(NotificationReason.UPDATED, cause, number)


@pytest.fixture
def fixture(tmp_path):
    with sink_worker(tmp_path) as fixture:
        yield fixture


def sent(fixture):
    """The notifications that the receiver got."""
    rows = fixture.connection.execute(
        "select notification from outbox where state = 'delivered' order by rowid"
    )
    return [notification_codec.decode(text) for (text,) in rows]


def headlines(fixture):
    return [build_message(each, None).headline.partition(", run")[0] for each in sent(fixture)]


def send(fixture, *notifications):
    fixture.enqueue(*notifications)
    fixture.deliver_all(after=CORRECTION_HOLD_SECONDS, tries=3)


def test_another_cause_is_one_message_where_messages_cannot_change(fixture):
    send(fixture, make(cause="slow_data"))
    send(fixture, update("slow_rank", 1))
    send(fixture, update("slow_rank", 2))

    assert len(fixture.receiver.accepted) == 2
    assert (
        headlines(fixture)[1]
        == "Update, warning: The cause is now slow rank, not slow data loading"
    )
    assert build_message(sent(fixture)[1], None).remedy == "Go back, and raise `beta`."


def test_a_cause_that_was_not_sent_is_replaced_without_a_message(fixture):
    fixture.enqueue(make(cause="slow_data"), update("slow_rank", 1))
    fixture.deliver_all(after=1.0, tries=3)

    assert [each.diagnosis.cause for each in sent(fixture)] == ["slow_rank"]


def test_a_first_cause_is_a_change_and_no_message(fixture):
    send(fixture, make())
    send(fixture, update("slow_rank", 1))

    assert len(fixture.receiver.accepted) == 1


def test_a_cause_that_is_withdrawn_is_one_message(fixture):
    send(fixture, make(cause="slow_data"))
    send(fixture, update("", 1))
    send(fixture, update("", 2))

    assert len(fixture.receiver.accepted) == 2
    assert headlines(fixture)[1].startswith("Update, warning: Cause withdrawn, slow data loading: ")


def test_a_cause_after_a_withdrawn_one_is_a_message(fixture):
    send(fixture, make(cause="slow_data"))
    send(fixture, update("", 1))
    send(fixture, update("slow_rank", 2))

    assert len(fixture.receiver.accepted) == 3
    assert headlines(fixture)[2] == "Update, warning: The cause is now slow rank"


def test_a_cause_that_returns_at_once_is_no_message(fixture):
    send(fixture, make(cause="slow_data"))
    fixture.enqueue(update("slow_rank", 1), update("slow_data", 2))
    fixture.deliver_all(after=CORRECTION_HOLD_SECONDS, tries=3)

    assert len(fixture.receiver.accepted) == 1


def test_the_newest_cause_is_sent_if_it_changed_while_the_message_waited(fixture):
    send(fixture, make(cause="slow_data"))
    send(fixture, update("slow_rank", 1), update("bad_batch", 2))

    assert [each.diagnosis.cause for each in sent(fixture)] == ["slow_data", "bad_batch"]
    assert "not slow data loading" in headlines(fixture)[1]


def test_a_cause_that_changes_all_the_time_is_sent_a_few_times(fixture):
    send(fixture, make(cause="slow_data"))
    for number in range(1, 20):
        send(fixture, update(("slow_data", "slow_rank")[number % 2], number))

    assert len(fixture.receiver.accepted) == 1 + MAX_CORRECTIONS


def test_a_correction_is_not_repeated_if_its_records_are_processed_again(fixture):
    for _ in range(2):
        send(fixture, make(cause="slow_data"))
        send(fixture, update("slow_rank", 1))

    assert len(fixture.receiver.accepted) == 2


def test_a_message_that_may_have_arrived_is_corrected(fixture):
    fixture.receiver.script = [webhook_receiver.accept_then_hang()]
    fixture.enqueue(make(cause="slow_data"))
    fixture.deliver_next()
    fixture.enqueue(update("slow_rank", 1))
    fixture.deliver_all(after=30.0, tries=3)

    assert headlines(fixture) == [
        "Update, warning: The cause is now slow rank, not slow data loading"
    ]


def test_a_message_that_can_change_is_sent_anew(fixture):
    fixture.worker.sink = UpdatingSink(fixture.receiver.url)
    fixture.receiver.default = webhook_receiver.accept_with_id()
    send(fixture, make(cause="slow_data"))
    send(fixture, update("slow_data", 1))
    send(fixture, update("slow_rank", 2))

    assert new_messages(fixture.receiver) == [("opened", "warning"), ("corrected", "warning")]
    assert len(fixture.receiver.accepted) == 3


def test_a_severity_that_rises_states_the_replaced_cause(fixture):
    send(fixture, make(cause="slow_data"))
    send(fixture, make(NotificationReason.ESCALATED, "slow_rank", severity=Severity.CRITICAL))

    message = build_message(sent(fixture)[1], None)
    assert message.label == "Now critical"
    assert message.notes == ("The cause is now slow rank, not slow data loading.",)


@pytest.mark.parametrize("first", ["", "slow_data"])
def test_the_end_names_the_cause_that_was_sent_and_states_a_later_one(fixture, first):
    send(fixture, make(cause=first))
    fixture.enqueue(update("slow_rank", 1))
    send(fixture, make(NotificationReason.RESOLVED, "slow_rank"))

    message = build_message(sent(fixture)[-1], None)
    assert len(fixture.receiver.accepted) == 2
    assert message.title == ("Slow data loading" if first else "KL blowup")
    assert message.notes == ("Cause found late: slow rank (likely, 83 %).",)


def at_end(notification, resolution=Resolution.RUN_FINISHED):
    """The notification of a case that fired when its run finished."""
    return replace(notification, incident=replace(notification.incident, resolution=resolution))


def test_a_cause_that_changes_just_before_the_end_of_the_run_is_sent_before_it(fixture):
    """At once: nothing follows that could replace it, and the agent may end soon."""
    send(fixture, make(cause="slow_data"))
    fixture.enqueue(update("slow_rank", 1), at_end(make(NotificationReason.RESOLVED, "slow_rank")))
    fixture.deliver_all(after=1.0, tries=2)

    assert headlines(fixture)[1:] == [
        "Update, warning: The cause is now slow rank, not slow data loading",
        "Resolved: Slow rank lasted until the run finished",
    ]
    assert build_message(sent(fixture)[-1], None).notes == ()


def test_the_end_names_the_cause_with_which_the_severity_rose_just_before(fixture):
    send(fixture, make(cause="slow_data"))
    send(
        fixture,
        make(NotificationReason.ESCALATED, "slow_rank", severity=Severity.CRITICAL),
        at_end(make(NotificationReason.RESOLVED, "slow_rank")),
    )

    _, escalated, resolved = [build_message(each, None) for each in sent(fixture)]
    assert escalated.notes == ("The cause is now slow rank, not slow data loading.",)
    assert (resolved.title, resolved.notes) == ("Slow rank", ())


def test_the_end_of_a_run_while_a_case_fires_contains_another_cause_once(fixture):
    send(fixture, make(cause="slow_data", severity=Severity.CRITICAL))
    ended = at_end(make(NotificationReason.ENDED, "slow_rank", severity=Severity.CRITICAL))
    send(fixture, update("slow_rank", 1), ended)

    assert headlines(fixture)[1:] == ["Ended while firing: Slow rank lasted until the run finished"]
    notes = build_message(sent(fixture)[1], None).notes
    assert notes[0] == "The cause is now slow rank, not slow data loading."


def test_a_run_that_finished_while_a_case_fires_is_a_message_that_closes_nothing(fixture):
    send(fixture, make(cause="slow_data"))
    ended = make(NotificationReason.ENDED, "slow_data", severity=Severity.CRITICAL)
    incident = replace(ended.incident, resolution=Resolution.RUN_FINISHED)
    send(fixture, replace(ended, incident=incident))

    message = build_message(sent(fixture)[-1], None)
    assert message.status == "firing"
    assert message.headline.startswith(
        "Ended while firing: Slow data loading lasted until the run finished"
    )
    assert outbox.is_open(fixture.connection, incident.name)


def test_the_report_of_a_run_follows_its_end_once(fixture):
    reported = []
    fixture.worker.on_resolved = lambda sink, notification, receipt: reported.append(notification)
    send(fixture, make(severity=Severity.CRITICAL))
    for reason in (NotificationReason.ENDED, NotificationReason.RESOLVED):
        send(fixture, make(reason, severity=Severity.CRITICAL))

    assert [each.reason for each in reported] == [NotificationReason.ENDED]


def test_the_end_of_a_run_before_the_first_message_is_part_of_it(fixture):
    ended = make(NotificationReason.ENDED, severity=Severity.CRITICAL)
    incident = replace(ended.incident, resolution=Resolution.RUN_FINISHED)
    reported = []
    fixture.worker.on_resolved = lambda sink, notification, receipt: reported.append(notification)
    send(fixture, make(severity=Severity.CRITICAL), replace(ended, incident=incident))

    (message,) = [build_message(each, None) for each in sent(fixture)]
    assert (message.status, message.label) == ("firing", "Ended while firing")
    assert "The run finished while this fires" in message.notes[0]
    send(fixture, make(NotificationReason.RESOLVED, severity=Severity.CRITICAL))
    assert [each.reason for each in reported] == [NotificationReason.OPENED]


def test_an_end_that_is_dated_later_keeps_the_cause_that_was_sent(fixture):
    send(fixture, make(cause="slow_data"))
    end = make(NotificationReason.RESOLVED, "slow_rank")
    fixture.enqueue(end)
    later = replace(end, incident=replace(end.incident, onset_step=70))
    outbox.correct_unsent(fixture.connection, later)
    fixture.deliver_all(tries=3)

    last = sent(fixture)[-1]
    assert (last.incident.onset_step, last.diagnosis.cause) == (70, "slow_data")
    assert last.notes == ("Cause found late: slow rank (likely, 83 %).",)
