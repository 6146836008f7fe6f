"""Telling: what is kept back is owed, and told once nothing keeps it back, exactly once."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from support.results import NOW, RUN, make_incident

from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentState, RunTier
from sentinel.model.notification import Notification, NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.notify import notification_codec
from sentinel.notify.policy import NotificationPolicy
from sentinel.pipeline.engine import Result
from sentinel.store import silences
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.silences import Acknowledgement, Silence, Suppression

CRITICAL = make_incident("kl_blowup")
WARNING = make_incident("kl_blowup", Severity.WARNING)


class House:
    """An agent's telling, a person's own connection, and a clock between them."""

    def __init__(self, path):
        self.path = path
        self.now = NOW
        self.person = connect(path)
        self.begin()

    def begin(self, tier=RunTier.PAGE):
        """A new agent takes over."""
        self.telling = NotificationPolicy(connect(self.path), ["slack"], tier, lambda: self.now)
        self.telling.poll()

    def silence(self, detector="", seconds=60.0):
        silences.add_silence(self.person, Silence(detector, self.now, self.now + seconds, "ana"))
        assert self.telling.poll()

    def tell(self, reason, of=CRITICAL):
        state = (
            IncidentState.RESOLVED
            if reason is NotificationReason.RESOLVED
            else IncidentState.FIRING
        )
        return self.telling.enqueue([Notification(reason, replace(of, state=state), 100, NOW)])

    def pay(self, *firing):
        self.telling.poll()
        due = self.telling.due_notifications(
            lambda: [Notification(NotificationReason.OPENED, each, 100, NOW) for each in firing]
        )
        self.telling.enqueue_pending(due)
        return len(due)

    def told(self):
        rows = self.person.execute("select notification from outbox order by rowid")
        pages = [notification_codec.decode(text) for (text,) in rows]
        return [(page.reason.value, page.incident.severity.value) for page in pages]

    def last(self):
        rows = self.person.execute("select notification from outbox order by rowid desc limit 1")
        return notification_codec.decode(rows.fetchone()[0])


@pytest.fixture
def house(tmp_path):
    house = House(tmp_path / "sentinel.db")
    with closing(house.person):
        yield house
        house.telling.connection.close()


def test_without_a_silence_every_page_is_queued(house):
    assert house.tell(NotificationReason.OPENED)
    assert house.tell(NotificationReason.RESOLVED)

    assert house.case_notifications() == [("opened", "critical"), ("resolved", "critical")]


def test_what_only_is_noted_is_never_queued(house):
    assert not house.tell(NotificationReason.OPENED, make_incident(severity=Severity.INFO))
    assert house.case_notifications() == []


def test_what_begins_and_ends_within_a_silence_is_never_told(house):
    house.silence()
    assert not house.tell(NotificationReason.OPENED)
    assert not house.tell(NotificationReason.RESOLVED)
    house.now += 61

    assert house.enqueue_pending(CRITICAL) == 0
    assert house.case_notifications() == []


def test_what_still_fires_when_the_silence_is_over_is_told_once(house):
    """Else an alert that was raised would reach nobody."""
    house.silence(seconds=60.0)
    house.tell(NotificationReason.OPENED)
    assert house.enqueue_pending(CRITICAL) == 0
    house.now += 61

    assert house.enqueue_pending(CRITICAL) == 1
    assert house.enqueue_pending(CRITICAL) == 0
    assert house.case_notifications() == [("opened", "critical")]
    assert house.last().notes == ("Withheld at step 100, and told now that nothing keeps it back.",)


def test_what_is_owed_and_calm_waits_until_it_comes_back(house):
    house.silence()
    house.tell(NotificationReason.OPENED)
    house.now += 61

    assert house.enqueue_pending() == 0
    assert house.enqueue_pending(CRITICAL) == 1


def test_what_got_worse_within_a_silence_is_told_as_one_page(house):
    house.silence()
    house.tell(NotificationReason.OPENED, WARNING)
    house.tell(NotificationReason.ESCALATED)
    house.now += 61
    house.enqueue_pending(CRITICAL)
    house.tell(NotificationReason.RESOLVED)

    assert house.case_notifications() == [("opened", "critical"), ("resolved", "critical")]


def test_a_silence_of_one_detector_is_none_of_the_others(house):
    house.silence("loss_plateau")

    assert house.tell(NotificationReason.OPENED)


def test_a_silence_that_a_person_ends_is_over(house):
    house.silence()
    house.tell(NotificationReason.OPENED)
    silences.expire_silences(house.person, "", house.now)

    assert house.enqueue_pending(CRITICAL) == 1


def test_the_next_agent_owes_what_the_last_one_did(house):
    house.silence()
    house.tell(NotificationReason.OPENED)
    house.telling.connection.close()
    house.begin()
    assert house.enqueue_pending(CRITICAL) == 0
    house.now += 61

    assert house.enqueue_pending(CRITICAL) == 1
    house.telling.connection.close()
    house.begin()
    assert house.enqueue_pending(CRITICAL) == 0


def test_who_has_it_in_hand_is_told_again_only_when_it_gets_louder(house):
    History(house.person)._store_incident(WARNING)
    house.tell(NotificationReason.OPENED, WARNING)
    silences.acknowledge(house.person, "", NOW, "ana", "looking")
    house.telling.poll()

    assert not house.tell(NotificationReason.ESCALATED, WARNING)
    assert house.tell(NotificationReason.ESCALATED)
    assert house.last().notes == ("Acknowledged at 2023-11-14 22:13 UTC by ana: looking",)


def test_that_it_is_over_is_told_to_who_has_it_in_hand(house):
    History(house.person)._store_incident(CRITICAL)
    house.tell(NotificationReason.OPENED)
    silences.acknowledge(house.person, "", NOW, "ana", "")

    house.telling.poll()
    assert house.tell(NotificationReason.RESOLVED)


def test_what_is_in_hand_when_its_silence_ends_is_not_told(house):
    History(house.person)._store_incident(CRITICAL)
    house.silence()
    house.tell(NotificationReason.OPENED)
    silences.acknowledge(house.person, "", NOW, "ana", "")
    house.now += 61

    assert house.enqueue_pending(CRITICAL) == 0
    assert not house.tell(NotificationReason.RESOLVED)
    assert house.case_notifications() == []


def test_a_run_of_tier_notify_wakes_nobody(house):
    house.telling.connection.close()
    house.begin(RunTier.NOTIFY)
    house.tell(NotificationReason.OPENED)

    assert house.case_notifications() == [("opened", "warning")]
    assert house.last().notes == ("It is critical; the run's tier 'notify' wakes nobody.",)


def test_of_a_quiet_run_nobody_is_told_until_it_matters(house):
    house.telling.connection.close()
    house.begin(RunTier.QUIET)
    house.tell(NotificationReason.OPENED)
    assert house.enqueue_pending(CRITICAL) == 0
    house.telling.connection.close()
    house.begin(RunTier.PAGE)

    assert house.enqueue_pending(CRITICAL) == 1
    assert house.case_notifications() == [("opened", "critical")]


def test_looking_again_finds_nothing_new(house):
    assert not house.telling.poll()
    house.silence()
    assert not house.telling.poll()
    house.now += 61
    assert house.telling.poll()
    assert house.telling.suppression.silences == ()


@pytest.mark.quiet
def test_a_page_that_cannot_be_read_costs_no_watch(house):
    house.person.execute("insert into pending_notification values('run/x#1', 'damaged')")
    house.telling.connection.close()
    house.begin()

    assert house.telling.pending == {}


def test_the_tier_that_the_run_was_begun_with_hides_the_settings_and_is_looked_at(house):
    for tier, heeded in (
        ("notify", RunTier.NOTIFY),
        ("no such", RunTier.NOTIFY),
        ("quiet", RunTier.QUIET),
    ):
        facts = {"monitor/tier": tier}
        house.telling.update(Result(Record(RUN, WHOLE_RUN, 0, NOW, Event.START, attributes=facts)))
        assert house.telling.poll() == (tier != "no such")
        assert house.telling.suppression.tier is heeded

    house.telling.update(Result(Record(RUN, WHOLE_RUN, 0, NOW, Event.START)))
    assert house.telling.suppression.tier is RunTier.QUIET
    assert not house.tell(NotificationReason.OPENED)


def test_a_cause_that_got_its_name_is_told_to_whoever_heard_of_the_case(house):
    house.tell(NotificationReason.OPENED)

    assert house.tell(NotificationReason.CAUSE_FOUND)
    assert house.case_notifications() == [("opened", "critical"), ("cause_found", "critical")]


def test_what_was_withheld_is_told_once_and_not_named_besides(house):
    house.silence(seconds=60.0)
    house.tell(NotificationReason.OPENED)
    assert not house.tell(NotificationReason.CAUSE_FOUND)
    house.now += 61

    assert house.enqueue_pending(CRITICAL) == 1
    assert house.case_notifications() == [("opened", "critical")]


def test_a_name_is_no_news_while_pages_are_withheld(house):
    house.tell(NotificationReason.OPENED)
    house.silence(seconds=60.0)
    assert not house.tell(NotificationReason.CAUSE_FOUND)
    house.now += 61

    assert house.enqueue_pending(CRITICAL) == 0


def test_a_warning_in_hand_does_not_swallow_the_critical_turn(house):
    """Whoever has it in hand knows of a warning."""
    part = make_incident("reward_collapse", Severity.WARNING)
    house.telling.suppression = Suppression(
        acks={part.name: Acknowledgement(part.name, Severity.WARNING, NOW)}
    )

    assert house.telling.enqueue(
        [Notification(NotificationReason.ESCALATED, CRITICAL, 100, NOW, others=(part,))]
    )


def test_what_joins_a_silenced_case_is_told_though_both_end_in_one_turn(house):
    part = make_incident("loss_spike", Severity.WARNING)
    house.silence("kl_blowup")
    house.telling.enqueue([Notification(NotificationReason.OPENED, WARNING, 100, NOW)])

    assert house.telling.enqueue(
        [Notification(NotificationReason.UPDATED, WARNING, 101, NOW, others=(part,))]
    )
    assert house.case_notifications() == [("opened", "warning")]


def test_a_case_that_rests_is_not_told_late(house):
    house.silence(seconds=60.0)
    house.tell(NotificationReason.OPENED)
    house.now += 61

    assert house.enqueue_pending(replace(CRITICAL, state=IncidentState.RESOLVED)) == 0
    assert house.enqueue_pending(CRITICAL) == 1


def test_what_joined_while_pages_were_withheld_is_told_as_that(house):
    part = make_incident("loss_spike")
    house.tell(NotificationReason.OPENED)
    house.silence(seconds=60.0)
    assert not house.telling.enqueue(
        [Notification(NotificationReason.INCIDENT_ADDED, CRITICAL, 101, NOW, others=(part,))]
    )
    house.now += 61
    house.telling.poll()
    due = house.telling.due_notifications(
        lambda: [Notification(NotificationReason.OPENED, CRITICAL, 100, NOW, others=(part,))]
    )
    house.telling.enqueue_pending(due)

    assert house.case_notifications() == [("opened", "critical"), ("incident_added", "critical")]
