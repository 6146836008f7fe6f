"""Tests of the notification policy: what is sent now, held back or dropped."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from support.notifications import with_diagnosis
from support.results import NOW, RUN, make_incident, make_result, step_result

from sentinel.config.route import Route
from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentState, Resolution, RunTier
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.notify import outbox
from sentinel.notify.policy import NotificationPolicy
from sentinel.notify.recipients import Recipients
from sentinel.pipeline.engine import Result
from sentinel.store import commands, notification_codec, silences
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.silences import Acknowledgement, Silence, Suppression
from sentinel.transport.command_page import Command

CRITICAL = make_incident("kl_blowup")
WARNING = make_incident("kl_blowup", Severity.WARNING)


class PolicyFixture:
    """A policy, a separate connection of a user, and a clock that the test advances."""

    def __init__(self, path):
        self.path = path
        self.now = NOW
        self.recipients = Recipients({"slack": Route()})
        self.user_connection = connect(path)
        self.start()

    def start(self, tier=RunTier.PAGE):
        """Create a policy, as a started agent does."""
        self.policy = NotificationPolicy(
            connect(self.path), self.recipients, tier, lambda: self.now
        )
        self.policy.poll()

    def restart(self, tier=RunTier.PAGE):
        self.policy.connection.close()
        self.start(tier)

    def silence(self, detector="", seconds=60.0):
        silences.add_silence(
            self.user_connection, Silence(detector, self.now, self.now + seconds, "ana")
        )
        assert self.policy.poll()

    def enqueue(self, reason, incident=CRITICAL):
        """Pass a notification to the policy; return whether it is queued."""
        is_resolved = reason is NotificationReason.RESOLVED
        state = IncidentState.RESOLVED if is_resolved else IncidentState.FIRING
        return self.policy.enqueue([Notification(reason, replace(incident, state=state), 100, NOW)])

    def enqueue_due(self, *open_incidents):
        """Queue due notifications while these incidents are open; return how many."""
        self.policy.poll()
        due = self.policy.due_notifications(
            lambda: [
                Notification(NotificationReason.OPENED, each, 100, NOW) for each in open_incidents
            ]
        )
        self.policy.enqueue_pending(due)
        return len(due)

    def deliver(self, sink="slack"):
        """Deliver what is queued for the sink."""
        while entry := outbox.claim(self.user_connection, sink, self.now):
            outbox.mark_delivered(self.user_connection, entry.key, self.now)

    def queued(self):
        """Reason and severity of the queued notifications."""
        rows = self.user_connection.execute("select notification from outbox order by rowid")
        notifications = [notification_codec.decode(text) for (text,) in rows]
        return [(each.reason.value, each.incident.severity.value) for each in notifications]

    def notes(self):
        """The notes of each queued notification."""
        rows = self.user_connection.execute("select notification from outbox order by rowid")
        return [notification_codec.decode(text).notes for (text,) in rows]

    def last_notes(self):
        return self.notes()[-1]


@pytest.fixture
def fixture(tmp_path):
    fixture = PolicyFixture(tmp_path / "sentinel.db")
    with closing(fixture.user_connection):
        yield fixture
        fixture.policy.connection.close()


def test_without_a_silence_every_notification_is_queued(fixture):
    assert fixture.enqueue(NotificationReason.OPENED)
    fixture.deliver()
    assert fixture.enqueue(NotificationReason.RESOLVED)

    assert fixture.queued() == [("opened", "critical"), ("resolved", "critical")]


def test_an_info_notification_is_never_queued(fixture):
    assert not fixture.enqueue(NotificationReason.OPENED, make_incident(severity=Severity.INFO))
    assert fixture.queued() == []


def test_a_case_that_opens_and_resolves_within_a_silence_is_never_sent(fixture):
    fixture.silence()
    assert not fixture.enqueue(NotificationReason.OPENED)
    assert not fixture.enqueue(NotificationReason.RESOLVED)
    fixture.now += 61

    assert fixture.enqueue_due(CRITICAL) == 0
    assert fixture.queued() == []


def test_a_case_that_fires_after_its_silence_is_sent_once(fixture):
    """Otherwise the alert would be lost."""
    fixture.silence(seconds=60.0)
    fixture.enqueue(NotificationReason.OPENED)
    assert fixture.enqueue_due(CRITICAL) == 0
    fixture.now += 61

    assert fixture.enqueue_due(CRITICAL) == 1
    assert fixture.enqueue_due(CRITICAL) == 0
    assert fixture.queued() == [("opened", "critical")]
    assert fixture.last_notes() == (
        "Held back at step 100, and sent now that nothing suppresses it.",
    )


def test_a_pending_case_that_does_not_fire_waits_until_it_fires(fixture):
    fixture.silence()
    fixture.enqueue(NotificationReason.OPENED)
    fixture.now += 61

    assert fixture.enqueue_due() == 0
    assert fixture.enqueue_due(CRITICAL) == 1


def test_an_escalation_within_a_silence_is_sent_as_one_notification(fixture):
    fixture.silence()
    fixture.enqueue(NotificationReason.OPENED, WARNING)
    fixture.enqueue(NotificationReason.ESCALATED)
    fixture.now += 61
    fixture.enqueue_due(CRITICAL)
    fixture.deliver()
    fixture.enqueue(NotificationReason.RESOLVED)

    assert fixture.queued() == [("opened", "critical"), ("resolved", "critical")]


def test_a_silence_of_one_detector_does_not_suppress_others(fixture):
    fixture.silence("loss_plateau")

    assert fixture.enqueue(NotificationReason.OPENED)


@pytest.mark.parametrize("is_escalated", [False, True])
def test_the_end_of_a_case_within_a_silence_closes_its_alerts_only(fixture, is_escalated):
    """Otherwise the message of the silenced case would show it as firing for ever."""
    fixture.recipients = Recipients({"slack": Route(), "bot": Route()}, ["bot"], ["bot"])
    fixture.restart()
    fixture.enqueue(NotificationReason.OPENED, WARNING)
    fixture.deliver("slack")
    fixture.deliver("bot")
    fixture.silence()
    if is_escalated:
        fixture.enqueue(NotificationReason.ESCALATED)
    fixture.enqueue(NotificationReason.RESOLVED)

    assert [reason for _, reason, _ in rows(fixture, "bot")] == ["opened", "resolved"]
    assert [reason for _, reason, _ in rows(fixture, "slack")] == ["opened"]


def test_an_expired_silence_releases_the_notification(fixture):
    fixture.silence()
    fixture.enqueue(NotificationReason.OPENED)
    silences.expire_silences(fixture.user_connection, "", fixture.now)

    assert fixture.enqueue_due(CRITICAL) == 1


def test_pending_notifications_survive_a_restart(fixture):
    fixture.silence()
    fixture.enqueue(NotificationReason.OPENED)
    fixture.restart()
    assert fixture.enqueue_due(CRITICAL) == 0
    fixture.now += 61

    assert fixture.enqueue_due(CRITICAL) == 1
    fixture.restart()
    assert fixture.enqueue_due(CRITICAL) == 0


def test_an_acknowledged_case_is_sent_again_only_when_the_severity_rises(fixture):
    History(fixture.user_connection).store_incident(WARNING)
    fixture.enqueue(NotificationReason.OPENED, WARNING)
    silences.acknowledge(fixture.user_connection, "", NOW, "ana", "looking")
    fixture.policy.poll()

    assert not fixture.enqueue(NotificationReason.ESCALATED, WARNING)
    assert fixture.enqueue(NotificationReason.ESCALATED)
    assert fixture.last_notes() == ("Acknowledged at 2023-11-14 22:13 UTC by ana: looking",)


def test_an_acknowledgement_updates_the_message_once(fixture):
    """Also after a restart of the agent; a case that was not sent has no message."""
    fixture.recipients = Recipients({"slack": Route()}, updatable={"slack"})
    fixture.restart()
    History(fixture.user_connection).store_incident(CRITICAL)
    fixture.enqueue(NotificationReason.OPENED)
    fixture.deliver()
    silences.acknowledge(fixture.user_connection, "", NOW, "ana", "looking")
    opened = Notification(NotificationReason.OPENED, CRITICAL, 100, NOW)
    unsent = replace(opened, incident=replace(CRITICAL, episode=7))

    for _ in range(2):
        fixture.policy.poll()
        found = fixture.policy.acknowledged_notifications(lambda: [opened, unsent])
        fixture.policy.enqueue_acknowledged(found)
        fixture.deliver()
        fixture.restart()

    assert fixture.queued() == [("opened", "critical"), ("updated", "critical")]
    assert fixture.last_notes() == ("Acknowledged at 2023-11-14 22:13 UTC by ana: looking",)


def test_the_resolution_of_an_acknowledged_case_is_sent(fixture):
    History(fixture.user_connection).store_incident(CRITICAL)
    fixture.enqueue(NotificationReason.OPENED)
    silences.acknowledge(fixture.user_connection, "", NOW, "ana", "")

    fixture.policy.poll()
    assert fixture.enqueue(NotificationReason.RESOLVED)


def test_a_case_acknowledged_within_its_silence_is_never_sent(fixture):
    History(fixture.user_connection).store_incident(CRITICAL)
    fixture.silence()
    fixture.enqueue(NotificationReason.OPENED)
    silences.acknowledge(fixture.user_connection, "", NOW, "ana", "")
    fixture.now += 61

    assert fixture.enqueue_due(CRITICAL) == 0
    assert not fixture.enqueue(NotificationReason.RESOLVED)
    assert fixture.queued() == []


def test_tier_notify_sends_critical_as_warning(fixture):
    fixture.restart(RunTier.NOTIFY)
    fixture.enqueue(NotificationReason.OPENED)

    assert fixture.queued() == [("opened", "warning")]
    assert fixture.last_notes() == (
        "The severity is critical; sent as warning, because the tier of the run is 'notify'.",
    )


def test_tier_quiet_holds_notifications_back_until_the_tier_changes(fixture):
    fixture.restart(RunTier.QUIET)
    fixture.enqueue(NotificationReason.OPENED)
    assert fixture.enqueue_due(CRITICAL) == 0
    fixture.restart(RunTier.PAGE)

    assert fixture.enqueue_due(CRITICAL) == 1
    assert fixture.queued() == [("opened", "critical")]


def test_poll_reports_changes_only(fixture):
    assert not fixture.policy.poll()
    fixture.silence()
    assert not fixture.policy.poll()
    fixture.now += 61
    assert fixture.policy.poll()
    assert fixture.policy.suppression.silences == ()


@pytest.mark.swallows_errors
def test_an_unreadable_pending_notification_is_skipped(fixture):
    fixture.user_connection.execute("insert into pending_notification values('run/x#1', 'damaged')")
    fixture.restart()

    assert fixture.policy.pending == {}


def test_the_tier_of_the_start_record_overrides_the_setting(fixture):
    for tier, expected in (
        ("notify", RunTier.NOTIFY),
        ("no such", RunTier.NOTIFY),
        ("quiet", RunTier.QUIET),
    ):
        attributes = {"monitor/tier": tier}
        start = Record(RUN, WHOLE_RUN, 0, NOW, Event.START, attributes=attributes)
        fixture.policy.update(Result(start))
        assert fixture.policy.poll() == (tier != "no such")
        assert fixture.policy.suppression.tier is expected

    fixture.policy.update(Result(Record(RUN, WHOLE_RUN, 0, NOW, Event.START)))
    assert fixture.policy.suppression.tier is RunTier.QUIET
    assert not fixture.enqueue(NotificationReason.OPENED)


def test_an_update_is_queued_only_for_sinks_that_can_update(fixture):
    fixture.recipients = Recipients({"slack": Route(), "bot": Route()}, updatable=["bot"])
    fixture.restart()
    fixture.enqueue(NotificationReason.OPENED)
    fixture.deliver("slack")
    fixture.deliver("bot")

    assert fixture.enqueue(NotificationReason.UPDATED)
    rows = fixture.user_connection.execute("select sink from outbox order by rowid").fetchall()
    assert rows == [("slack",), ("bot",), ("bot",)]


def test_an_update_within_a_silence_is_part_of_the_delayed_notification(fixture):
    fixture.silence(seconds=60.0)
    fixture.enqueue(NotificationReason.OPENED)
    assert not fixture.enqueue(NotificationReason.UPDATED)
    fixture.now += 61

    assert fixture.enqueue_due(CRITICAL) == 1
    assert fixture.queued() == [("opened", "critical")]


def test_an_update_within_a_silence_is_not_pending(fixture):
    fixture.enqueue(NotificationReason.OPENED)
    fixture.silence(seconds=60.0)
    assert not fixture.enqueue(NotificationReason.UPDATED)
    fixture.now += 61

    assert fixture.enqueue_due(CRITICAL) == 0


def test_an_acknowledged_warning_does_not_suppress_an_escalation(fixture):
    member = make_incident("reward_collapse", Severity.WARNING)
    fixture.policy.suppression = Suppression(
        acks={member.name: Acknowledgement(member.name, Severity.WARNING, NOW)}
    )

    assert fixture.policy.enqueue(
        [Notification(NotificationReason.ESCALATED, CRITICAL, 100, NOW, others=(member,))]
    )


def test_an_incident_outside_the_silence_releases_the_pending_case(fixture):
    member = make_incident("loss_spike", Severity.WARNING)
    fixture.silence("kl_blowup")
    fixture.policy.enqueue([Notification(NotificationReason.OPENED, WARNING, 100, NOW)])

    assert fixture.policy.enqueue(
        [Notification(NotificationReason.UPDATED, WARNING, 101, NOW, others=(member,))]
    )
    assert fixture.queued() == [("opened", "warning")]


def test_a_pending_case_that_resolved_is_not_sent(fixture):
    fixture.silence(seconds=60.0)
    fixture.enqueue(NotificationReason.OPENED)
    fixture.now += 61

    assert fixture.enqueue_due(replace(CRITICAL, state=IncidentState.RESOLVED)) == 0
    assert fixture.enqueue_due(CRITICAL) == 1


def test_a_planned_command_is_noted_when_the_case_opens(fixture):
    command = Command(1, 20, 30, frozenset({"checkpoint", "stop"}), CRITICAL.name)
    commands.store_command(
        fixture.user_connection, CRITICAL.name, commands.PlannedCommand(command, 0, 30)
    )

    fixture.enqueue(NotificationReason.OPENED)
    note = "A checkpoint and a stop were requested for step 30."
    assert fixture.last_notes() == (note,)
    fixture.enqueue(NotificationReason.UPDATED)
    # It took the place of what no receiver had got.
    assert fixture.queued() == [("opened", "critical"), ("updated", "critical")]
    assert fixture.notes() == [(note,)] * 2
    fixture.deliver()
    fixture.enqueue(NotificationReason.RESOLVED)
    assert fixture.last_notes() == ()


def test_a_refused_command_is_noted_with_its_reason(fixture):
    commands.store_refusal(fixture.user_connection, CRITICAL.name, "it has not completed a step")

    fixture.enqueue(NotificationReason.OPENED)
    assert fixture.last_notes() == (
        "No command was sent to the run, because it has not completed a step.",
    )


def add_run(fixture, gpu="NVIDIA H200"):
    """Ten steps of 60 s up to step 100, on 64 ranks."""
    attributes = {"gpu": gpu} if gpu else {}
    start = make_result(Event.START, 0, values={"world_size": 64.0}, attributes=attributes)
    steps = [step_result(step, loss=1.0) for step in range(91, 101)]
    history = History(fixture.user_connection)
    for each in (start, *steps):
        record = replace(each.record, time=NOW - 60.0 * (100 - each.record.step))
        history.update(Result(record))


def test_a_critical_case_states_the_gpu_hours_since_its_onset(fixture):
    add_run(fixture)
    onset = replace(CRITICAL, onset_step=95)

    fixture.enqueue(NotificationReason.OPENED, onset)
    assert fixture.last_notes() == ("5.3 GPU hours were used since the onset.",)
    fixture.deliver()
    fixture.enqueue(NotificationReason.RESOLVED, onset)
    assert fixture.last_notes() == ()


@pytest.mark.parametrize(
    ("incident", "gpu"),
    [
        (replace(WARNING, onset_step=95), "NVIDIA H200"),
        (replace(CRITICAL, onset_step=95), ""),
        (replace(CRITICAL, onset_step=100), "NVIDIA H200"),
    ],
    ids=["a warning", "no GPU", "less than a minute"],
)
def test_the_cost_of_other_cases_is_not_stated(fixture, incident, gpu):
    add_run(fixture, gpu)
    fixture.enqueue(NotificationReason.OPENED, incident)

    assert fixture.last_notes() == ()


def test_shadow_mode_states_the_command_and_what_a_stop_would_have_saved(fixture):
    add_run(fixture)
    request = commands.ActionRequest(CRITICAL.name, frozenset({"checkpoint", "stop"}))
    commands.store_shadow(fixture.user_connection, request, 97)
    fixture.enqueue(NotificationReason.OPENED, replace(CRITICAL, onset_step=95))

    assert fixture.last_notes() == (
        "Shadow mode: a checkpoint and a stop would have been requested for step 97.",
        "5.3 GPU hours were used since the onset; the stop would have saved 3.2 of them.",
    )


def rows(fixture, sink):
    """State, reason and severity of what was queued for the sink."""
    query = "select state, reason, severity from outbox where sink = ? order by rowid"
    return fixture.user_connection.execute(query, [sink]).fetchall()


def test_a_route_selects_the_notifications_of_its_sink(fixture):
    routes = {
        "all": Route(),
        "pager": Route(min_severity="critical"),
        "other": Route(runs=["another*"]),
        "team": Route(teams=["post"]),
    }
    fixture.recipients = Recipients(routes, team="post")
    fixture.restart()
    fixture.enqueue(NotificationReason.OPENED, WARNING)
    fixture.deliver("all")
    assert rows(fixture, "pager") == rows(fixture, "other") == []
    fixture.enqueue(NotificationReason.ESCALATED)

    assert [reason for _, reason, _ in rows(fixture, "all")] == ["opened", "escalated"]
    assert rows(fixture, "pager") == [("queued", "opened", "critical")]
    assert rows(fixture, "team") == [
        ("queued", "opened", "critical"),
        ("merged", "escalated", "critical"),
    ]


def test_the_end_of_a_case_goes_to_the_sinks_that_know_it(fixture):
    fixture.recipients = Recipients({"all": Route(), "pager": Route(min_severity="critical")})
    fixture.restart()
    fixture.enqueue(NotificationReason.OPENED, WARNING)
    fixture.deliver("all")
    fixture.enqueue(NotificationReason.RESOLVED, WARNING)

    assert [reason for _, reason, _ in rows(fixture, "all")] == ["opened", "resolved"]
    assert rows(fixture, "pager") == []


NIGHT = Route(quiet_hours="22:00-07:00", timezone="UTC")
"""`NOW` is at 22:13 UTC."""


def test_quiet_hours_withhold_what_is_not_critical_until_the_morning(fixture):
    fixture.recipients = Recipients({"slack": NIGHT, "day": Route()})
    fixture.restart()
    fixture.enqueue(NotificationReason.OPENED, WARNING)
    fixture.enqueue(NotificationReason.OPENED, make_incident("nan_or_inf"))

    assert [state for state, _, _ in rows(fixture, "slack")] == ["withheld", "queued"]
    assert [state for state, _, _ in rows(fixture, "day")] == ["queued", "queued"]
    fixture.deliver()
    fixture.now += 9 * 3600
    fixture.deliver()
    assert [state for state, _, _ in rows(fixture, "slack")] == ["delivered", "delivered"]


def test_what_is_over_in_the_morning_is_not_sent(fixture):
    fixture.recipients = Recipients({"slack": NIGHT})
    fixture.restart()
    fixture.enqueue(NotificationReason.OPENED, WARNING)
    fixture.enqueue(NotificationReason.RESOLVED, WARNING)
    fixture.now += 9 * 3600
    fixture.deliver()

    assert {state for state, _, _ in rows(fixture, "slack")} == {"merged"}


def test_a_case_that_ended_with_a_failed_run_is_not_sent_in_the_morning(fixture):
    fixture.recipients = Recipients({"slack": NIGHT, "mail": Route()})
    fixture.restart()
    fixture.enqueue(NotificationReason.OPENED, WARNING)
    fixture.enqueue(NotificationReason.RESOLVED, replace(WARNING, resolution=Resolution.RUN_FAILED))

    assert {state for state, _, _ in rows(fixture, "slack")} == {"merged"}
    assert rows(fixture, "mail") == [("queued", "opened", "warning")]


def test_a_case_that_becomes_critical_at_night_is_sent_at_once(fixture):
    fixture.recipients = Recipients({"slack": NIGHT})
    fixture.restart()
    fixture.enqueue(NotificationReason.OPENED, WARNING)
    fixture.enqueue(NotificationReason.ESCALATED)
    fixture.deliver()

    assert rows(fixture, "slack")[0] == ("delivered", "opened", "critical")


def test_the_end_of_a_warning_waits_for_the_morning_unless_it_only_changes_a_message(fixture):
    fixture.recipients = Recipients({"slack": NIGHT, "bot": NIGHT}, updatable=["bot"])
    fixture.now -= 3600
    fixture.restart()
    fixture.enqueue(NotificationReason.OPENED, WARNING)
    fixture.deliver("slack")
    fixture.deliver("bot")
    fixture.now += 3600
    fixture.enqueue(NotificationReason.RESOLVED, WARNING)

    assert rows(fixture, "slack")[-1][0] == "withheld"
    assert rows(fixture, "bot")[-1][0] == "queued"


@pytest.mark.parametrize(
    ("detector", "hold"),
    [("kl_blowup", 1.0), ("run_died", 0.0), ("run_failed", 0.0), ("node_lost", 0.0)],
)
def test_only_what_may_still_get_a_cause_is_held(fixture, detector, hold):
    fixture.recipients = Recipients({"slack": Route()}, hold_seconds=1.0)
    fixture.restart()
    fixture.enqueue(NotificationReason.OPENED, make_incident(detector))

    assert outbox.next_attempt_time(fixture.user_connection, "slack", NOW) == NOW + hold


def test_a_critical_case_with_a_cause_is_not_held(fixture):
    fixture.recipients = Recipients({"slack": Route()}, hold_seconds=1.0)
    fixture.restart()
    diagnosed = with_diagnosis(Notification(NotificationReason.OPENED, CRITICAL, 100, NOW))
    fixture.policy.enqueue([diagnosed])

    assert outbox.next_attempt_time(fixture.user_connection, "slack", NOW) == NOW
