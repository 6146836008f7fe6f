"""What is asked of a run: once a case, ahead of its fastest rank, and only where all can act."""

from __future__ import annotations

import time
from dataclasses import replace

import pytest
from support.command_rings import Node
from support.notifications import page as page_of

from sentinel.model.finding import Severity
from sentinel.model.incident import IncidentKey
from sentinel.model.notification import NotificationReason
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.pipeline.engine import Result
from sentinel.store.silences import Acknowledgement, Silence, Suppression

NOW = time.time()


@pytest.fixture
def node(tmp_path):
    nodes = []

    def made_of(**how):
        nodes.append(Node(tmp_path, **how))
        return nodes[-1]

    yield made_of
    nodes[0].stack.close()


def case(
    detector="kl_blowup", episode=1, severity=Severity.CRITICAL, reason=NotificationReason.OPENED
):
    page = page_of()
    key = IncidentKey("run", WHOLE_RUN, detector)
    incident = replace(page.incident, key=key, episode=episode, severity=severity)
    return replace(page, incident=incident, reason=reason)


def start(attempt=0, **facts):
    return Result(Record("run", WHOLE_RUN, 0, NOW, Event.START, attributes=facts, attempt=attempt))


def test_a_critical_case_is_asked_for_ahead_of_the_fastest_rank_and_its_page_says_so(node):
    here = node(ranks=2)
    here.run(40, seconds=40)
    here.run(1, seconds=1, rank=1)

    told = here.asks.plan(case())
    assert here.asked() is None
    here.asks.poll()

    request = here.asked()
    assert (request.ready_from_index, request.beat) == (41, 51)
    assert (request.actions, request.case) == ({"checkpoint"}, "run/kl_blowup#1")
    assert told.notes == ("A checkpoint was requested for step 51.",)
    assert here.rows() == [("run/kl_blowup#1", 1, 51)]


@pytest.mark.parametrize(
    ("beats", "seconds", "ahead"),
    [(20, 20, 10), (20, 0.2, 200), (20, 1200, 3), (20, 100, 4)],
    ids=["a second each", "ten milliseconds", "a minute", "five seconds"],
)
def test_how_far_ahead_is_two_seconds_and_ten_steps_unless_they_are_long(
    node, beats, seconds, ahead
):
    here = node()
    here.run(beats, seconds)
    here.asks.plan(case())
    here.asks.poll()

    request = here.asked()
    assert request.beat - request.ready_from_index == pytest.approx(ahead, abs=1 + ahead // 50)


def test_a_clock_that_was_set_back_does_not_put_a_request_off_for_ever(node):
    here = node()
    here.run(20, seconds=-3600)
    here.asks.plan(case())
    here.asks.poll()

    assert here.asked().beat == 30


def test_a_run_that_only_speaks_of_every_tenth_step_is_given_as_many_of_those(node):
    here = node()
    for _ in range(6):
        writer = here.writers[0]
        writer.publish_step(writer.step + 10, writer.beat + 10, writer.time + 1.0)
        here.asks.poll()
    here.asks.plan(case())
    here.asks.poll()

    request = here.asked()
    assert (request.ready_from_index, request.beat) == (60, 160)


def test_one_case_is_asked_for_once_whatever_becomes_of_it(node):
    here = node()
    here.run(20, seconds=20)
    here.asks.plan(case())
    here.run(40, seconds=40)
    worse = here.asks.plan(case(reason=NotificationReason.ESCALATED))
    here.asks.poll()

    assert worse.notes == ()
    assert here.asked().number == 1


def test_another_case_meanwhile_joins_what_is_under_way_and_a_later_one_does_not(node):
    here = node()
    here.run(20, seconds=20)
    here.asks.plan(case())
    here.run(2, seconds=2)
    joined = here.asks.plan(case("nan_or_inf"))
    here.asks.poll()
    assert joined.notes == ("A checkpoint was requested for step 30.",)
    assert here.asked().number == 1

    here.run(20, seconds=20)
    here.asks.plan(case("reward_collapse"))
    here.asks.poll()
    assert here.asked().number == 2
    assert [number for _, number, _ in here.rows()] == [1, 1, 2]


@pytest.mark.parametrize(
    "page",
    [
        case(severity=Severity.WARNING),
        case(reason=NotificationReason.RESOLVED),
        case("run_died"),
        case("run_stalled"),
    ],
    ids=["a warning", "what is over", "the run's end", "a standstill"],
)
def test_for_this_nothing_is_asked(node, page):
    here = node()
    here.run(20, seconds=20)

    assert here.asks.plan(page) is page
    assert here.rows() == []


def test_nothing_is_asked_unless_it_was_set(node):
    here = node(deeds=())
    here.run(20, seconds=20)

    assert here.asks.plan(case()).notes == ()
    assert here.rows() == []


def test_nothing_is_asked_of_a_case_that_somebody_silenced_or_has_in_hand(node):
    here = node()
    here.run(20, seconds=20)
    here.quiet = Suppression(silences=(Silence("kl_blowup", NOW, NOW + 60),))
    assert here.asks.plan(case()).notes == ()
    here.quiet = Suppression(
        acks={"run/kl_blowup#1": Acknowledgement("run/kl_blowup#1", Severity.CRITICAL, NOW)}
    )
    assert here.asks.plan(case()).notes == ()

    here.quiet = Suppression()
    for later in (
        NotificationReason.UPDATED,
        NotificationReason.CAUSE_FOUND,
        NotificationReason.INCIDENT_ADDED,
        NotificationReason.RESOLVED,
    ):
        joined = replace(case(reason=later), others=(case().incident,))
        assert here.asks.plan(joined).notes == (), "who reads no page is not to find it stopped"


def test_a_case_that_grew_critical_is_asked_for_though_a_warning_of_it_was_in_hand(node):
    here = node()
    here.run(20, seconds=20)
    warning = case("reward_collapse", severity=Severity.WARNING).incident
    grown = replace(case(reason=NotificationReason.ESCALATED), others=(warning,))
    here.quiet = Suppression(
        acks={warning.name: Acknowledgement(warning.name, Severity.WARNING, NOW)}
    )

    assert here.asks.plan(grown).notes != ()


@pytest.mark.parametrize(
    ("how", "why"),
    [
        ({"ranks": 2, "world": 4}, "its ranks are on several nodes, whose agents do not act"),
        ({"paged": False}, "its ranks made no place where it could be asked"),
    ],
)
def test_what_cannot_be_asked_is_said_in_plain_words(node, how, why):
    here = node(**how)
    here.run(20, seconds=20)
    told = here.asks.plan(case())
    here.asks.poll()

    assert told.notes[0].startswith(f"Nothing was asked of the run, for {why}")
    assert here.rows() == [("run/kl_blowup#1", None, None)]
    assert here.asks.plan(case()).notes == ()


def test_a_rank_that_is_not_there_could_not_act_so_none_is_asked(node):
    here = node(ranks=2)
    here.run(20, seconds=20)
    here.readers.pop()

    assert "not every rank of it is watched" in here.asks.plan(case()).notes[0]


def test_of_a_run_that_is_over_nothing_is_asked(node):
    here = node()
    here.run(20, seconds=20)
    here.writers[0].close("finished")

    assert here.asks.plan(case()).notes == ()
    here.readers.clear()
    assert here.asks.plan(case()).notes == ()
    assert here.rows() == []


def test_an_agent_that_takes_over_writes_what_was_stored_and_asks_for_nothing_new(node):
    here = node()
    here.run(20, seconds=20)
    here.asks.plan(case())
    here.begin_backward()
    assert here.asks.plan(case()).notes == ()
    here.asks.poll()
    written = here.asked()
    assert (written.number, written.ready_from_index, written.beat) == (1, 20, 30)

    here.begin_backward()
    here.run(20, seconds=20)
    assert here.asked() == written


def test_an_agent_that_takes_over_too_late_lets_it_be(node):
    here = node()
    here.run(20, seconds=20)
    here.asks.plan(case())
    here.begin_backward()
    here.writers[0].publish_step(30, 30, NOW)
    here.asks.poll()

    assert here.asked() is None


def test_an_agent_that_lost_its_database_goes_on_counting_from_the_page(node):
    here = node()
    here.run(20, seconds=20)
    here.asks.plan(case())
    here.run(20, seconds=20)
    here.connection.execute("delete from request")
    here.begin_backward()
    here.run(2, seconds=2)
    here.asks.plan(case())
    here.asks.poll()

    assert here.asked().number == 2


def test_what_the_run_was_begun_with_hides_the_setting(node):
    here = node()
    here.asks.update(start(**{"monitor/on_critical": "stop call"}))
    assert here.asks.actions == {"stop", "call"}
    here.asks.update(start())
    assert here.asks.actions == {"stop", "call"}

    here.run(20, seconds=20)
    told = here.asks.plan(case())
    assert told.notes == ("A stop and a call of your function were requested for step 30.",)
    here.asks.update(start(**{"monitor/on_critical": ""}))
    assert here.asks.actions == frozenset()


def test_what_an_earlier_attempt_was_begun_with_is_not_asked_of_the_next(node):
    here = node()
    here.asks.update(start(**{"monitor/on_critical": "stop call"}))
    here.asks.update(start(attempt=1))

    assert here.asks.actions == {"checkpoint"}
