"""Telling: what is kept back is owed, and told once nothing keeps it back, exactly once."""

from __future__ import annotations

from contextlib import closing
from dataclasses import replace

import pytest
from support.results import NOW, RUN, incident

from sentinel.model.finding import Severity
from sentinel.model.incident import Page, Reason, State, Tier
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.notify import notification_codec
from sentinel.notify.policy import Telling
from sentinel.pipeline.engine import Verdict
from sentinel.store import silences
from sentinel.store.database import connect
from sentinel.store.history import History
from sentinel.store.silences import Ack, Quiet, Silence

CRITICAL = incident("kl_blowup")
WARNING = incident("kl_blowup", Severity.WARNING)


class House:
    """An agent's telling, a person's own connection, and a clock between them."""

    def __init__(self, path):
        self.path = path
        self.now = NOW
        self.person = connect(path)
        self.begin()

    def begin(self, tier=Tier.PAGE):
        """A new agent takes over."""
        self.telling = Telling(connect(self.path), ["slack"], tier, lambda: self.now)
        self.telling.look()

    def silence(self, detector="", seconds=60.0):
        silences.enter(self.person, Silence(detector, self.now, self.now + seconds, "ana"))
        assert self.telling.look()

    def tell(self, reason, of=CRITICAL):
        state = State.RESOLVED if reason is Reason.RESOLVED else State.FIRING
        return self.telling.post([Page(reason, replace(of, state=state), 100, NOW)])

    def pay(self, *firing):
        self.telling.look()
        due = self.telling.due(lambda: [Page(Reason.OPENED, each, 100, NOW) for each in firing])
        self.telling.pay(due)
        return len(due)

    def told(self):
        rows = self.person.execute("select page from outbox order by rowid")
        pages = [notification_codec.decode(text) for (text,) in rows]
        return [(page.reason.value, page.incident.severity.value) for page in pages]

    def last(self):
        rows = self.person.execute("select page from outbox order by rowid desc limit 1")
        return notification_codec.decode(rows.fetchone()[0])


@pytest.fixture
def house(tmp_path):
    house = House(tmp_path / "sentinel.db")
    with closing(house.person):
        yield house
        house.telling.connection.close()


def test_without_a_silence_every_page_is_queued(house):
    assert house.tell(Reason.OPENED)
    assert house.tell(Reason.RESOLVED)

    assert house.told() == [("opened", "critical"), ("resolved", "critical")]


def test_what_only_is_noted_is_never_queued(house):
    assert not house.tell(Reason.OPENED, incident(severity=Severity.INFO))
    assert house.told() == []


def test_what_begins_and_ends_within_a_silence_is_never_told(house):
    house.silence()
    assert not house.tell(Reason.OPENED)
    assert not house.tell(Reason.RESOLVED)
    house.now += 61

    assert house.pay(CRITICAL) == 0
    assert house.told() == []


def test_what_still_fires_when_the_silence_is_over_is_told_once(house):
    """Else an alert that was raised would reach nobody."""
    house.silence(seconds=60.0)
    house.tell(Reason.OPENED)
    assert house.pay(CRITICAL) == 0
    house.now += 61

    assert house.pay(CRITICAL) == 1
    assert house.pay(CRITICAL) == 0
    assert house.told() == [("opened", "critical")]
    assert house.last().notes == ("Withheld at step 100, and told now that nothing keeps it back.",)


def test_what_is_owed_and_calm_waits_until_it_comes_back(house):
    house.silence()
    house.tell(Reason.OPENED)
    house.now += 61

    assert house.pay() == 0
    assert house.pay(CRITICAL) == 1


def test_what_got_worse_within_a_silence_is_told_as_one_page(house):
    house.silence()
    house.tell(Reason.OPENED, WARNING)
    house.tell(Reason.WORSENED)
    house.now += 61
    house.pay(CRITICAL)
    house.tell(Reason.RESOLVED)

    assert house.told() == [("opened", "critical"), ("resolved", "critical")]


def test_a_silence_of_one_detector_is_none_of_the_others(house):
    house.silence("loss_plateau")

    assert house.tell(Reason.OPENED)


def test_a_silence_that_a_person_ends_is_over(house):
    house.silence()
    house.tell(Reason.OPENED)
    silences.end(house.person, "", house.now)

    assert house.pay(CRITICAL) == 1


def test_the_next_agent_owes_what_the_last_one_did(house):
    house.silence()
    house.tell(Reason.OPENED)
    house.telling.connection.close()
    house.begin()
    assert house.pay(CRITICAL) == 0
    house.now += 61

    assert house.pay(CRITICAL) == 1
    house.telling.connection.close()
    house.begin()
    assert house.pay(CRITICAL) == 0


def test_who_has_it_in_hand_is_told_again_only_when_it_gets_louder(house):
    History(house.person)._enter(WARNING)
    house.tell(Reason.OPENED, WARNING)
    silences.acknowledge(house.person, "", NOW, "ana", "looking")
    house.telling.look()

    assert not house.tell(Reason.WORSENED, WARNING)
    assert house.tell(Reason.WORSENED)
    assert house.last().notes == ("Acknowledged at 2023-11-14 22:13 UTC by ana: looking",)


def test_that_it_is_over_is_told_to_who_has_it_in_hand(house):
    History(house.person)._enter(CRITICAL)
    house.tell(Reason.OPENED)
    silences.acknowledge(house.person, "", NOW, "ana", "")

    house.telling.look()
    assert house.tell(Reason.RESOLVED)


def test_what_is_in_hand_when_its_silence_ends_is_not_told(house):
    History(house.person)._enter(CRITICAL)
    house.silence()
    house.tell(Reason.OPENED)
    silences.acknowledge(house.person, "", NOW, "ana", "")
    house.now += 61

    assert house.pay(CRITICAL) == 0
    assert not house.tell(Reason.RESOLVED)
    assert house.told() == []


def test_a_run_of_tier_notify_wakes_nobody(house):
    house.telling.connection.close()
    house.begin(Tier.NOTIFY)
    house.tell(Reason.OPENED)

    assert house.told() == [("opened", "warning")]
    assert house.last().notes == ("It is critical; the run's tier 'notify' wakes nobody.",)


def test_of_a_quiet_run_nobody_is_told_until_it_matters(house):
    house.telling.connection.close()
    house.begin(Tier.QUIET)
    house.tell(Reason.OPENED)
    assert house.pay(CRITICAL) == 0
    house.telling.connection.close()
    house.begin(Tier.PAGE)

    assert house.pay(CRITICAL) == 1
    assert house.told() == [("opened", "critical")]


def test_looking_again_finds_nothing_new(house):
    assert not house.telling.look()
    house.silence()
    assert not house.telling.look()
    house.now += 61
    assert house.telling.look()
    assert house.telling.quiet.silences == ()


@pytest.mark.quiet
def test_a_page_that_cannot_be_read_costs_no_watch(house):
    house.person.execute("insert into owed values('run/x#1', 'damaged')")
    house.telling.connection.close()
    house.begin()

    assert house.telling.owed == {}


def test_the_tier_that_the_run_was_begun_with_hides_the_settings_and_is_looked_at(house):
    for tier, heeded in (("notify", Tier.NOTIFY), ("no such", Tier.NOTIFY), ("quiet", Tier.QUIET)):
        facts = {"monitor/tier": tier}
        house.telling.take(Verdict(Record(RUN, WHOLE_RUN, 0, NOW, Event.START, facts=facts)))
        assert house.telling.look() == (tier != "no such")
        assert house.telling.quiet.tier is heeded

    house.telling.take(Verdict(Record(RUN, WHOLE_RUN, 0, NOW, Event.START)))
    assert house.telling.quiet.tier is Tier.QUIET
    assert not house.tell(Reason.OPENED)


def test_a_cause_that_got_its_name_is_told_to_whoever_heard_of_the_case(house):
    house.tell(Reason.OPENED)

    assert house.tell(Reason.NAMED)
    assert house.told() == [("opened", "critical"), ("named", "critical")]


def test_what_was_withheld_is_told_once_and_not_named_besides(house):
    house.silence(seconds=60.0)
    house.tell(Reason.OPENED)
    assert not house.tell(Reason.NAMED)
    house.now += 61

    assert house.pay(CRITICAL) == 1
    assert house.told() == [("opened", "critical")]


def test_a_name_is_no_news_while_pages_are_withheld(house):
    house.tell(Reason.OPENED)
    house.silence(seconds=60.0)
    assert not house.tell(Reason.NAMED)
    house.now += 61

    assert house.pay(CRITICAL) == 0


def test_a_warning_in_hand_does_not_swallow_the_critical_turn(house):
    """Whoever has it in hand knows of a warning."""
    part = incident("reward_collapse", Severity.WARNING)
    house.telling.quiet = Quiet(acks={part.name: Ack(part.name, Severity.WARNING, NOW)})

    assert house.telling.post([Page(Reason.WORSENED, CRITICAL, 100, NOW, others=(part,))])


def test_what_joins_a_silenced_case_is_told_though_both_end_in_one_turn(house):
    part = incident("loss_spike", Severity.WARNING)
    house.silence("kl_blowup")
    house.telling.post([Page(Reason.OPENED, WARNING, 100, NOW)])

    assert house.telling.post([Page(Reason.UPDATED, WARNING, 101, NOW, others=(part,))])
    assert house.told() == [("opened", "warning")]


def test_a_case_that_rests_is_not_told_late(house):
    house.silence(seconds=60.0)
    house.tell(Reason.OPENED)
    house.now += 61

    assert house.pay(replace(CRITICAL, state=State.RESOLVED)) == 0
    assert house.pay(CRITICAL) == 1


def test_what_joined_while_pages_were_withheld_is_told_as_that(house):
    part = incident("loss_spike")
    house.tell(Reason.OPENED)
    house.silence(seconds=60.0)
    assert not house.telling.post([Page(Reason.JOINED, CRITICAL, 101, NOW, others=(part,))])
    house.now += 61
    house.telling.look()
    due = house.telling.due(lambda: [Page(Reason.OPENED, CRITICAL, 100, NOW, others=(part,))])
    house.telling.pay(due)

    assert house.told() == [("opened", "critical"), ("joined", "critical")]
