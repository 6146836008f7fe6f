"""Tests of the outbox: each notification is queued once, claimed once and never deleted."""

from dataclasses import replace

import pytest
from support.notifications import NOW, make_notification

from sentinel.config.route import Route
from sentinel.model.finding import Severity
from sentinel.model.incident import Resolution
from sentinel.model.message import build_message
from sentinel.model.notification import NotificationReason, RunContext
from sentinel.notify import outbox
from sentinel.notify.outbox import DeliveryProblem, QueueRules
from sentinel.notify.recipients import Recipients
from sentinel.store.database import connect
from sentinel.store.notification_codec import decode

ALL = QueueRules(updatable=["slack"])


@pytest.fixture
def connection(tmp_path):
    connection = connect(tmp_path / "sentinel.db")
    yield connection
    connection.close()


def make_update(number, **changes):
    return replace(make_notification(NotificationReason.UPDATED, **changes), number=number)


def make_end(resolution, ended=None):
    """The end of a case that is over for that reason, and for `ended` before that."""
    resolved = make_notification(NotificationReason.RESOLVED)
    incident = replace(resolved.incident, resolution=resolution, ended=ended)
    return replace(resolved, incident=incident)


def unsent(connection, sink="slack"):
    """The notifications that are still to be delivered."""
    query = (
        "select notification from outbox where sink = ? and state in ('queued', 'withheld')"
        " order by rowid"
    )
    return [decode(text) for (text,) in connection.execute(query, [sink])]


def queued(connection, sink="slack"):
    """Their names and severities."""
    return [
        (each.name.removeprefix("grpo-7b/kl_blowup#1:"), each.incident.severity.value)
        for each in unsent(connection, sink)
    ]


def fail(connection, now=NOW, *, is_answered=True, delay=60.0):
    """Try the next notification in vain."""
    entry = outbox.claim(connection, "slack", now)
    outbox.reschedule(connection, entry.key, now + delay, "HTTP 500", is_answered=is_answered)
    return entry


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
    """The receiver may have accepted the first one without an answer, so it is tried again."""
    outbox.enqueue(connection, make_notification(severity=Severity.WARNING), ["slack"], NOW, ALL)
    first = outbox.claim(connection, "slack", NOW)
    outbox.enqueue(connection, make_update(1), ["slack"], NOW, ALL)
    outbox.reschedule(connection, first.key, NOW + 60, "ReadTimeoutError", is_answered=False)

    assert outbox.claim(connection, "slack", NOW) is None
    outbox.reschedule(connection, first.key, NOW, "ReadTimeoutError", is_answered=False)
    assert delivery_order(connection) == ["kl_blowup#1:opened", "kl_blowup#1:updated-1"]


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
    entry = outbox.claim(restarted, "slack", NOW)
    assert (entry.key, entry.tries, entry.last_error) == (key, 2, "AgentKilled")
    restarted.close()


def test_a_restarted_agent_holds_a_warning_again(connection):
    warning = make_notification(severity=Severity.WARNING)
    outbox.enqueue(connection, warning, ["slack"], NOW)
    outbox.requeue_interrupted(connection, NOW + 5.0, hold_seconds=1.0)

    assert outbox.claim(connection, "slack", NOW + 5.5) is None
    assert outbox.claim(connection, "slack", NOW + 6.0) is not None


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


@pytest.mark.parametrize("is_tried", [False, True])
def test_an_escalation_joins_the_opening_that_no_receiver_has(connection, is_tried):
    """One message, of the higher severity; a critical one does not wait for the next try."""
    outbox.enqueue(connection, make_notification(severity=Severity.WARNING), ["slack"], NOW)
    if is_tried:
        fail(connection)
    outbox.enqueue(connection, make_notification(NotificationReason.ESCALATED), ["slack"], NOW)

    assert queued(connection) == [("opened", "critical")]
    assert delivery_order(connection) == ["kl_blowup#1:opened"]
    assert (
        outbox.enqueue(connection, make_notification(NotificationReason.ESCALATED), ["slack"]) == 0
    )


def test_an_escalation_replaces_an_opening_that_the_receiver_may_have(connection):
    """It has a key of its own: the receiver would drop it as a repeat of the opening."""
    outbox.enqueue(connection, make_notification(severity=Severity.WARNING), ["slack"], NOW)
    fail(connection, is_answered=False)
    outbox.enqueue(connection, make_notification(NotificationReason.ESCALATED), ["slack"], NOW)

    assert delivery_order(connection) == ["kl_blowup#1:escalated-critical"]


def test_an_escalation_does_not_wait_for_an_opening_that_fails_meanwhile(connection):
    outbox.enqueue(connection, make_notification(severity=Severity.WARNING), ["slack"], NOW)
    entry = outbox.claim(connection, "slack", NOW)
    outbox.enqueue(connection, make_notification(NotificationReason.ESCALATED), ["slack"], NOW)
    outbox.reschedule(connection, entry.key, NOW + 60, "HTTP 500")

    assert delivery_order(connection) == ["kl_blowup#1:escalated-critical"]


def test_updates_join_what_is_not_sent_yet(connection):
    outbox.enqueue(connection, make_notification(summary="Old."), ["slack", "mail"], NOW, ALL)
    for number in (1, 2):
        update = make_update(number, summary=f"New {number}.")
        outbox.enqueue(connection, update, ["slack", "mail"], NOW, ALL)

    for sink in ("slack", "mail"):
        notification = decode(outbox.claim(connection, sink, NOW).notification_json)
        assert notification.reason is NotificationReason.OPENED
        assert notification.incident.finding.summary == "New 2."
        assert outbox.claim(connection, sink, NOW) is None


def test_many_updates_of_a_sent_message_are_one(connection):
    outbox.enqueue(connection, make_notification(), ["slack", "mail"], NOW, ALL)
    assert delivery_order(connection) == delivery_order(connection, "mail")
    for number in range(1, 50):
        outbox.enqueue(connection, make_update(number), ["slack", "mail"], NOW, ALL)

    assert delivery_order(connection) == ["kl_blowup#1:updated-49"]
    assert delivery_order(connection, "mail") == []


def test_updates_of_a_failing_receiver_keep_its_delay(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW, ALL)
    delivery_order(connection)
    outbox.enqueue(connection, make_update(1), ["slack"], NOW, ALL)
    fail(connection)
    outbox.enqueue(connection, make_update(2), ["slack"], NOW + 1, ALL)

    assert outbox.claim(connection, "slack", NOW + 59) is None
    assert outbox.claim(connection, "slack", NOW + 60) is not None


@pytest.mark.parametrize("is_tried", [False, True])
def test_a_case_that_opened_and_resolved_unsent_is_one_message(connection, is_tried):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    if is_tried:
        fail(connection)
    outbox.enqueue(connection, make_notification(NotificationReason.RESOLVED), ["slack"], NOW)
    notification = decode(outbox.claim(connection, "slack", NOW).notification_json)

    assert notification.reason is NotificationReason.RESOLVED
    assert notification.notes == (
        "It fired at step 100 and was over at step 120. This is the first message.",
    )
    assert outbox.claim(connection, "slack", NOW + 99) is None


def test_a_case_that_opened_just_before_the_end_of_the_run_is_sent_as_firing(connection):
    """A receiver of alerts ignores the end of one that it does not know."""
    outbox.enqueue(connection, make_notification(), ["slack"], NOW, QueueRules(hold_seconds=2.0))
    outbox.enqueue(connection, make_end(Resolution.RUN_FINISHED), ["slack"], NOW + 0.1)

    assert [name for name, _ in queued(connection)] == ["opened", "resolved"]
    assert outbox.claim(connection, "slack", NOW + 0.2) is None, "the end waits for the opening"
    opened = outbox.claim(connection, "slack", NOW + 2.1)
    outbox.mark_delivered(connection, opened.key)
    assert [opened.reason, outbox.claim(connection, "slack", NOW + 2.1).reason] == [
        "opened",
        "resolved",
    ]


@pytest.mark.parametrize("is_answered", [True, False])
def test_a_failing_receiver_gets_the_alert_of_a_case_that_lasted_to_the_end(
    connection, is_answered
):
    """It is tried again at once, and its further failures leave both in the queue."""
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    fail(connection, is_answered=is_answered)
    outbox.enqueue(connection, make_end(Resolution.RUN_FINISHED), ["slack"], NOW)
    fail(connection)

    assert [name for name, _ in queued(connection)] == ["opened", "resolved"]
    opened = outbox.claim(connection, "slack", NOW + 60)
    outbox.mark_delivered(connection, opened.key, NOW + 60)
    resolved = outbox.claim(connection, "slack", NOW + 60)
    assert (opened.reason, resolved.reason) == ("opened", "resolved")
    assert decode(resolved.notification_json).notes == ()


def test_an_alert_that_fails_while_its_run_ends_is_not_replaced_by_the_end(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    entry = outbox.claim(connection, "slack", NOW)
    outbox.enqueue(connection, make_end(Resolution.RUN_FINISHED), ["slack"], NOW)
    outbox.reschedule(connection, entry.key, NOW, "HTTP 503")

    assert delivery_order(connection) == ["kl_blowup#1:opened", "kl_blowup#1:resolved"]


def test_the_only_message_of_a_case_says_that_it_lasted_to_the_end_of_the_run(connection):
    """A person acknowledged it before a receiver accepted its alert."""
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    fail(connection)
    end = make_end(Resolution.ACKNOWLEDGED, ended=Resolution.RUN_FINISHED)
    outbox.enqueue(connection, end, ["slack"], NOW)

    (note,) = decode(outbox.claim(connection, "slack", NOW).notification_json).notes
    assert note.startswith("It fired at step 100 and lasted to step 120, when the run finished.")


def test_an_onset_that_is_estimated_after_the_end_corrects_the_alert_that_is_sent_first(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    end = make_end(Resolution.RUN_FINISHED)
    outbox.enqueue(connection, end, ["slack"], NOW)
    incident = replace(end.incident, onset_step=70, last_good_step=60)
    context = RunContext(checkpoint_path="/out/checkpoint-60")
    outbox.correct_unsent(connection, replace(end, incident=incident, context=context))

    alert, resolved = [build_message(each, None) for each in unsent(connection)]
    assert (alert.status, alert.checkpoint) == ("firing", "step 60, /out/checkpoint-60")
    assert alert.since.startswith("Since step 70; found at step 100")
    assert resolved.since.startswith("It lasted from step 70 to step 120")


@pytest.mark.parametrize("has_opening", [True, False])
def test_a_training_that_ended_while_firing_is_sent_though_the_next_one_begins(
    connection, has_opening
):
    """In a sweep of seconds it opens, ends and closes within the time of holding."""
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    if not has_opening:
        outbox.mark_delivered(connection, outbox.claim(connection, "slack", NOW).key)
    outbox.enqueue(connection, make_notification(NotificationReason.ENDED), ["slack"], NOW)
    outbox.enqueue(connection, make_end(Resolution.STARTED_AGAIN), ["slack"], NOW)

    assert [name for name, _ in queued(connection)] == [
        "opened" if has_opening else "ended",
        "resolved",
    ]


def test_the_first_message_is_held_briefly(connection):
    rules = QueueRules(hold_seconds=1.0)
    outbox.enqueue(connection, make_notification(), ["slack"], NOW, rules)
    escalated = make_notification(NotificationReason.ESCALATED, episode=2)
    outbox.enqueue(connection, escalated, ["slack"], NOW, rules)

    assert outbox.next_attempt_time(connection, "slack", NOW) == NOW
    assert delivery_order(connection) == ["kl_blowup#2:escalated-critical"]
    assert outbox.next_attempt_time(connection, "slack", NOW) == NOW + 1.0


def test_what_is_withheld_is_sent_later_with_its_newest_content(connection):
    morning = NOW + 8 * 3600
    rules = QueueRules(withheld={"slack": morning}, updatable=["slack"])
    warning = make_notification(severity=Severity.WARNING)
    outbox.enqueue(connection, warning, ["slack", "pager"], NOW, rules)
    outbox.enqueue(connection, make_update(1, summary="New."), ["slack"], NOW + 60, ALL)

    assert delivery_order(connection, "pager") == ["kl_blowup#1:opened"]
    assert outbox.claim(connection, "slack", morning - 1) is None
    entry = outbox.claim(connection, "slack", morning)
    assert decode(entry.notification_json).incident.finding.summary == "New."
    assert entry.created == morning, "it would be too old after the first failure"


def test_what_is_withheld_and_over_is_never_sent(connection):
    rules = QueueRules(withheld={"slack": NOW + 9999})
    outbox.enqueue(connection, make_notification(), ["slack"], NOW, rules)
    outbox.enqueue(connection, make_notification(NotificationReason.RESOLVED), ["slack"], NOW)

    assert queued(connection) == []


def test_a_critical_escalation_releases_what_is_withheld(connection):
    rules = QueueRules(withheld={"slack": NOW + 9999})
    outbox.enqueue(connection, make_notification(severity=Severity.WARNING), ["slack"], NOW, rules)
    outbox.enqueue(connection, make_notification(NotificationReason.ESCALATED), ["slack"], NOW)

    assert queued(connection) == [("opened", "critical")]
    assert outbox.claim(connection, "slack", NOW).created == NOW


def test_the_receipt_of_the_newest_message_is_used(connection):
    """It survives the agent; a message without one leaves the earlier one current."""
    receipts = []
    for notification, receipt in [
        (make_notification(severity=Severity.WARNING), "first"),
        (make_update(1), None),
        (make_notification(NotificationReason.ESCALATED), "second"),
        (make_update(2), "second"),
        (make_notification(NotificationReason.RESOLVED), None),
    ]:
        outbox.enqueue(connection, notification, ["slack"], NOW, ALL)
        entry = outbox.claim(connection, "slack", NOW)
        receipts.append(entry.receipt)
        outbox.mark_delivered(connection, entry.key, NOW, receipt)

    assert receipts == [None, "first", "first", "second", "second"]
    assert outbox.newest_receipt(connection, "slack", "grpo-7b/kl_blowup#2") is None


def test_a_success_retries_everything_of_its_sink_at_once(connection):
    for episode in (1, 2):
        outbox.enqueue(connection, make_notification(episode=episode), ["slack"], NOW)
        fail(connection, delay=300.0)
    outbox.enqueue(connection, make_notification(episode=3), ["slack"], NOW)
    entry = outbox.claim(connection, "slack", NOW)
    assert outbox.claim(connection, "slack", NOW + 1) is None
    outbox.mark_delivered(connection, entry.key, NOW + 1)

    assert outbox.claim(connection, "slack", NOW + 1) is not None


def test_a_requested_delay_holds_after_a_success(connection):
    for episode in (1, 2):
        outbox.enqueue(connection, make_notification(episode=episode), ["slack"], NOW)
    first = outbox.claim(connection, "slack", NOW)
    outbox.postpone_sink(connection, "slack", NOW + 30)
    outbox.mark_delivered(connection, first.key, NOW)

    assert outbox.claim(connection, "slack", NOW + 29) is None
    assert outbox.claim(connection, "slack", NOW + 30) is not None


SINKS = Recipients({name: Route() for name in ("slack", "webhook", "mail")}).substitutes
PAGED = Recipients(
    {
        "slack": Route(),
        "pager": Route(min_severity="critical"),
        "other": Route(teams=["another"]),
    }
).substitutes


def reject(connection, sink, *sinks, reason=NotificationReason.OPENED, **changes):
    """Queue a notification for sinks, of which the first one rejects it; return its entry."""
    outbox.enqueue(connection, make_notification(reason, **changes), [sink, *sinks], NOW)
    entry = outbox.claim(connection, sink, NOW)
    outbox.mark_dead(connection, entry.key, "HTTP 404", NOW)
    return entry


def test_a_dead_letter_goes_to_the_next_sink_that_has_not_got_it(connection):
    entry = reject(connection, "slack", "webhook")

    assert outbox.fail_over(connection, entry, "slack", SINKS, NOW) == "mail"
    assert outbox.fail_over(connection, entry, "slack", SINKS, NOW) is None
    notification = decode(outbox.claim(connection, "mail", NOW).notification_json)
    assert notification.notes == ("Sent here because the sink 'slack' did not accept it.",)
    assert notification.name == make_notification().name


def test_a_sink_that_records_neither_has_a_substitute_nor_is_one(connection):
    names = ("slack", "mlflow", "mail")
    recipients = Recipients({name: Route() for name in names}, recording=["mlflow"])
    from_slack = reject(connection, "slack")
    from_mlflow = reject(connection, "mlflow", episode=2)

    assert outbox.fail_over(connection, from_mlflow, "mlflow", recipients.substitutes, NOW) is None
    assert outbox.fail_over(connection, from_slack, "slack", recipients.substitutes, NOW) == "mail"


def test_the_last_sink_fails_over_to_the_first(connection):
    entry = reject(connection, "mail")

    assert outbox.fail_over(connection, entry, "mail", SINKS, NOW) == "slack"


def test_only_what_is_critical_goes_to_a_sink_whose_route_does_not_permit_it(connection):
    warning = reject(connection, "slack", severity=Severity.WARNING)
    critical = reject(connection, "slack", "pager", episode=2)

    assert outbox.fail_over(connection, warning, "slack", PAGED, NOW) is None
    assert outbox.fail_over(connection, critical, "slack", PAGED, NOW) is None, "pager has it"
    outbox.mark_dead(connection, outbox.claim(connection, "pager", NOW).key, "HTTP 400", NOW)
    assert outbox.fail_over(connection, critical, "pager", PAGED, NOW) == "other"


def test_what_a_sink_has_at_that_severity_is_not_passed_on_to_it(connection):
    """The pager got the critical case as its opening."""
    outbox.enqueue(connection, make_notification(severity=Severity.WARNING), ["slack"], NOW)
    delivery_order(connection)
    outbox.enqueue(connection, make_notification(), ["pager"], NOW)
    entry = reject(connection, "slack", reason=NotificationReason.ESCALATED)

    assert outbox.fail_over(connection, entry, "slack", PAGED, NOW) is None
    assert delivery_order(connection, "pager") == ["kl_blowup#1:opened"]


def test_what_is_passed_on_waits_for_the_end_of_quiet_hours(connection):
    """`NOW` is at 22:13 UTC."""
    night = Route(quiet_hours="22:00-07:00", timezone="UTC")
    substitutes = Recipients({"slack": Route(), "mail": night}).substitutes
    warning = reject(connection, "slack", severity=Severity.WARNING)
    critical = reject(connection, "slack", episode=2)

    assert outbox.fail_over(connection, warning, "slack", substitutes, NOW) == "mail"
    assert outbox.fail_over(connection, critical, "slack", substitutes, NOW) == "mail"
    assert delivery_order(connection, "mail") == ["kl_blowup#2:opened"]


def test_the_end_of_a_case_goes_to_the_sink_that_got_its_opening_instead(connection):
    outbox.fail_over(connection, reject(connection, "slack"), "slack", SINKS, NOW)
    entry = reject(connection, "slack", reason=NotificationReason.RESOLVED)

    assert outbox.fail_over(connection, entry, "slack", SINKS, NOW) == "webhook"
    assert outbox.fail_over(connection, entry, "slack", SINKS, NOW) is None


def test_the_end_of_a_case_that_the_sink_reported_is_not_passed_on(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    delivery_order(connection)
    entry = reject(connection, "slack", reason=NotificationReason.RESOLVED)

    assert outbox.fail_over(connection, entry, "slack", SINKS, NOW) is None


def test_delivery_problems_are_counted_until_the_receiver_accepts_something(connection):
    for episode in (1, 2, 3):
        outbox.enqueue(connection, make_notification(episode=episode), ["slack"], NOW)
    for at in (1, 2):
        key = outbox.claim(connection, "slack", NOW).key
        outbox.mark_dead(connection, key, f"HTTP 40{at}", NOW + at)
    assert outbox.delivery_problems(connection) == [
        DeliveryProblem("slack", 2, 0, "HTTP 402", NOW + 1)
    ]
    entry = fail(connection)
    assert outbox.delivery_problems(connection)[0].waiting == 1
    outbox.mark_delivered(connection, entry.key, NOW + 3)

    assert outbox.delivery_problems(connection) == []


def test_a_notification_for_each_of_many_incidents_is_claimed_quickly(connection):
    """A storm must not make each poll of the worker slow."""
    connection.execute("begin")
    for episode in range(2000):
        outbox.enqueue(connection, make_notification(episode=episode), ["slack"], NOW)
    connection.execute("commit")
    plan = connection.execute(
        "explain query plan select 1 from outbox where incident = 'x' and sink = 'y'"
    ).fetchall()

    assert "outbox_by_incident" in f"{plan}"
    assert outbox.claim(connection, "slack", NOW) is not None


def test_a_notification_that_is_taken_back_is_not_sent_and_needs_no_resolution(connection):
    opened = make_notification()
    outbox.enqueue(connection, opened, ["slack", "webhook"], NOW)
    delivered = outbox.claim(connection, "webhook", NOW)
    outbox.mark_delivered(connection, delivered.key, NOW)

    assert outbox.withdraw(connection, opened.incident.name) == 1
    outbox.enqueue(
        connection, make_notification(NotificationReason.RESOLVED), ["slack", "webhook"], NOW
    )
    assert queued(connection) == []
    assert [name for name, _ in queued(connection, "webhook")] == ["resolved"]


def test_a_notification_that_may_have_arrived_is_not_taken_back(connection):
    opened = make_notification()
    outbox.enqueue(connection, opened, ["slack"], NOW)
    fail(connection, is_answered=False)

    assert outbox.withdraw(connection, opened.incident.name) == 0


def test_what_is_taken_back_is_queued_again_if_its_incident_goes_on(connection):
    opened = make_notification()
    outbox.enqueue(connection, opened, ["slack"], NOW)
    outbox.withdraw(connection, opened.incident.name)

    assert outbox.restore_withdrawn(connection, opened.incident.name, NOW) == 1
    assert delivery_order(connection) == ["kl_blowup#1:opened"]


def end_silently(connection, resolution):
    resolved = make_notification(NotificationReason.RESOLVED)
    incident = replace(resolved.incident, resolution=resolution)
    rules = QueueRules(silent=["slack"])
    outbox.enqueue(connection, replace(resolved, incident=incident), ["slack", "pager"], NOW, rules)


@pytest.mark.parametrize("is_tried", [False, True])
@pytest.mark.parametrize("resolution", [Resolution.ACKNOWLEDGED, Resolution.EXPIRED])
def test_a_receiver_that_gets_no_end_does_not_get_the_alert_either_once_it_is_settled(
    connection, resolution, is_tried
):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    if is_tried:
        fail(connection)
    end_silently(connection, resolution)

    assert queued(connection) == []


def test_a_receiver_that_gets_no_end_still_gets_the_alert_of_a_run_that_started_again(connection):
    outbox.enqueue(connection, make_notification(), ["slack"], NOW)
    end_silently(connection, Resolution.STARTED_AGAIN)

    assert [name for name, _ in queued(connection)] == ["opened"]


@pytest.mark.parametrize(
    ("severity", "hours"), [(Severity.CRITICAL, 24.0), (Severity.WARNING, 1.0)]
)
def test_what_was_never_tried_is_given_up_once_it_is_too_old(connection, severity, hours):
    outbox.enqueue(connection, make_notification(severity=severity), ["slack", "pager"], NOW)

    assert outbox.give_up_old(connection, ["slack"], NOW + hours * 3600 - 1) == 0
    assert outbox.give_up_old(connection, ["slack"], NOW + hours * 3600) == 1
    assert outbox.count_by_state(connection) == {("slack", "dead"): 1, ("pager", "queued"): 1}


@pytest.mark.parametrize("is_answered", [True, False])
def test_the_end_of_an_alert_that_was_given_up_is_sent_if_the_receiver_may_have_it(
    connection, is_answered
):
    outbox.enqueue(connection, make_notification(), ["pager"], NOW)
    key = outbox.claim(connection, "pager", NOW).key
    outbox.reschedule(connection, key, NOW, "ReadTimeoutError", is_answered=is_answered)
    outbox.give_up_old(connection, ["pager"], NOW + 99_999.0)
    end_silently(connection, Resolution.EXPIRED)

    expected = [] if is_answered else ["resolved"]
    assert [name for name, _ in queued(connection, "pager")] == expected


def test_the_end_of_a_case_closes_its_alert_at_any_age(connection):
    outbox.enqueue(connection, make_notification(), ["pager"], NOW)
    outbox.mark_delivered(connection, outbox.claim(connection, "pager", NOW).key)
    outbox.enqueue(connection, make_notification(episode=2), ["pager"], NOW)
    for episode in (1, 2):
        end = make_notification(NotificationReason.RESOLVED, episode=episode)
        outbox.enqueue(connection, end, ["pager"], NOW)

    assert outbox.give_up_old(connection, ["pager"], NOW + 99_999.0, closable=["pager"]) == 1
    entry = outbox.claim(connection, "pager", NOW + 99_999.0)
    assert (entry.incident, entry.reason) == ("grpo-7b/kl_blowup#1", "resolved")
