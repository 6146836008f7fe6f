"""Fall: ranks that fall when a node dies are one matter with it; any other fall is told of soon.

Two nodes of two ranks, a head with a clock of its own, and all that is made of what it says.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from support.heads import House, last_tick

from sentinel.cluster.membership import ABANDON_AFTER_SECONDS
from sentinel.config.settings import Settings, build_causes, build_detectors
from sentinel.model.counters import Counters
from sentinel.model.notification import NotificationReason
from sentinel.model.record import Event
from sentinel.pipeline.pipeline import Pipeline

LIMIT = 15.0
"""Seconds within which the death of a node is to be told."""


class Fallen(House):
    """A house whose own ranks may have fallen, and what people are told of it, and when."""

    def __init__(self, path):
        super().__init__(path)
        self.judge = Pipeline(build_detectors(Settings()), Counters(), build_causes())
        self.pages, self.stepped, self.fell, self.lived = [], self.now, 0.0, 2.0
        self.facts = {}
        self.node_b = self.running()
        for step in range(1, 30):
            self.step(step)

    def turn(self, *local, seconds=0.5):
        records = super().turn(*local, seconds=seconds)
        for record in records:
            told = [
                page
                for verdict in self.judge.process(record)
                for page in verdict.case_notifications
            ]
            self.pages += [
                (self.now, p) for p in told if p.reason is not NotificationReason.UPDATED
            ]
        return records

    def step(self, step, *, others=True):
        self.stepped = self.now
        if others:
            self.node_b.decode(*self.node_b.says(step=step), self.node_b.tick())
        self.turn(*self.own.says(step=step), self.tick())

    def tick(self):
        """How our own ranks are."""
        tick = self.own.tick()
        values = {
            "ranks_running": self.lived, "ranks_gone": 0.0, "ranks_failed": 0.0,
            "idle_seconds": self.now + 0.5 - self.stepped,
        }  # fmt: skip
        facts = {
            "died_ranks": "",
            "failed_ranks": "",
            "straggler_ranks": "0,1",
            "straggler_step": "29",
        }
        if not self.lived:
            facts = {}
        if self.fell:
            facts = {
                **facts,
                **self.facts,
                "failed_seconds_ago": f"{self.now + 0.5 - self.fell:.3f}",
            }
        return replace(tick, values=values, facts={**tick.attributes, **facts})

    def fall(self, cause="exception", *, left=0, **said):
        """Our ranks fall at once; `left` of them go on."""
        self.fell, self.lived = self.now, float(left)
        ranks = [0, 1][: 2 - left]
        names = ",".join(map(str, ranks))
        died = cause == "died"
        self.facts = {
            "cause": cause,
            "died_ranks": names * died,
            "failed_ranks": names * (not died),
            **said,
        }
        self.facts["state"] = "running" if left else "died" if died else "failed"
        stops = [self.own.word(rank, Event.STOP, 29, outcome=cause, **said) for rank in ranks]
        self.turn(*stops, self.tick())

    def pass_by(self, seconds, *, others=False):
        for _ in range(int(seconds * 2)):
            if others:
                self.node_b.decode(self.node_b.tick())
            self.turn(self.tick())

    @property
    def told(self):
        return [page.incident.key.detector for _, page in self.pages]


@pytest.fixture
def house(tmp_path):
    return Fallen(tmp_path / "sentinel.db")


FALLS = [("exception", {"exception": "RuntimeError"}), ("exit", {"code": "1"}), ("died", {})]


@pytest.mark.parametrize(("cause", "said"), FALLS, ids=[cause for cause, _ in FALLS])
@pytest.mark.parametrize("left", [0, 1], ids=["all fall", "one stands"])
def test_a_node_that_dies_and_takes_the_others_along_is_one_page(house, cause, said, left):
    died = house.now
    house.fall(cause, left=left, **said)
    house.pass_by(2 * ABANDON_AFTER_SECONDS)

    ((time, page),) = house.pages
    assert page.incident.key.detector == "node_lost"
    assert page.diagnosis.cause == "node_down"
    assert page.incident.severity.value == "critical"
    assert 0.0 < time - died <= LIMIT
    how = {"exception": "raised RuntimeError", "exit": "left with exit code 1"}
    evidence = page.incident.finding.evidence
    assert evidence["first_to_fall"] == f"rank 0 {how.get(cause, 'was killed')}"
    assert evidence["training"] == ("stands" if left else "ended")
    assert str(evidence["first_to_fall"]) in page.incident.finding.summary


def test_ranks_that_fall_long_after_the_node_for_want_of_it_are_no_second_page(house):
    """Its power is gone: the others' connections say so only when their own patience is over."""
    house.pass_by(600.0)
    assert house.node_status == ["node_lost"]
    house.fall(exception="RuntimeError")
    house.pass_by(2 * ABANDON_AFTER_SECONDS)

    assert house.node_status == ["node_lost"]


@pytest.mark.parametrize(("cause", "said"), FALLS, ids=[cause for cause, _ in FALLS])
def test_a_fall_while_all_nodes_speak_is_told_as_soon_as_they_have(house, cause, said):
    began = house.now
    house.fall(cause, **said)
    assert house.node_status == []
    house.pass_by(30.0, others=True)

    ((time, page),) = house.pages
    assert page.incident.key.detector == ("run_died" if cause == "died" else "run_failed")
    assert time - began <= 4.0


def test_where_the_others_have_ended_as_well_nobody_is_waited_for(house):
    house.node_b.decode(
        *house.node_b.says(Event.STOP, outcome="exception", exception="RuntimeError"),
        replace(house.node_b.tick("failed"), values={"ranks_running": 0.0}),
    )
    house.fall(exception="ValueError")

    assert house.node_status == ["run_failed"]


def test_a_node_that_falls_silent_after_the_run_ended_is_no_news(house):
    """Launchers end all nodes, agents too, once a rank of one has failed."""
    house.fall(exception="ValueError")
    house.pass_by(5.0, others=True)
    house.pass_by(2 * ABANDON_AFTER_SECONDS)

    assert house.node_status == ["run_failed"]


def test_a_fall_of_those_who_had_gone_on_without_the_node_is_told_for_itself(house):
    for step in range(30, 60):
        house.step(step, others=False)
    assert house.node_status == ["node_lost"]
    began = house.now
    house.fall(exception="ValueError")

    assert house.node_status == ["node_lost", "run_failed"]
    assert house.pages[-1][0] - began <= 4.0


def test_a_node_that_speaks_again_leaves_the_fall_to_be_told(house):
    house.fall(exception="ValueError")
    house.pass_by(8.0)
    assert house.node_status == []
    house.pass_by(4.0, others=True)

    assert house.node_status == ["run_failed"]


def test_a_new_attempt_before_that_is_decided_wakes_nobody(house):
    """Torchrun goes on with the nodes that are left."""
    house.fall("died")
    house.pass_by(5.0)
    house.fell, house.lived = 0.0, 2.0
    house.stepped = house.now
    house.world = 2
    house.own_member.began = house.now
    for _ in range(30):
        house.stepped = house.now
        starts = house.own_member.says(Event.START, attempt=1)
        house.merge(*starts, replace(house.tick(), attempt=1))

    assert house.node_status == []


def test_a_head_that_is_ended_meanwhile_tells_what_it_knows(house):
    house.fall(exception="RuntimeError")
    house.pass_by(3.0)
    assert house.node_status == []
    house.head.is_shutting_down = True
    house.pass_by(0.5)

    assert house.node_status == ["run_failed"]


def test_a_head_that_was_killed_meanwhile_waits_for_the_nodes_to_come_back(house):
    house.fall(exception="RuntimeError")
    house.connection.close()
    house.start_at_attempt()
    house.pass_by(5.0)
    assert house.node_status == []
    node = house.node_b
    node.hello()
    house.merge()
    house.pass_by(3.0, others=True)

    assert house.node_status == ["run_failed"]


def test_and_not_for_ever(house):
    house.fall(exception="RuntimeError")
    house.connection.close()
    house.start_at_attempt()
    house.pass_by(LIMIT)

    assert house.node_status == ["run_failed"]


def test_a_lost_node_whose_own_rank_fell_first_explains_nothing(house):
    tick = house.node_b.tick()
    facts = {
        **tick.attributes,
        "cause": "exception",
        "failed_ranks": "2",
        "failed_seconds_ago": "0.100",
        "died_ranks": "",
    }
    values = {**tick.values, "ranks_running": 1.0, "ranks_failed": 1.0}
    house.node_b.decode(
        house.node_b.word(2, Event.STOP, 29, outcome="exception"),
        replace(tick, facts=facts, values=values),
    )
    house.pass_by(3.0)

    assert house.node_status == ["run_failed"]
    assert "failure_origin" not in last_tick(house.merge(house.tick())).attributes
