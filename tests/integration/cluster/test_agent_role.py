"""Nodes: each agent takes its part, hands over what is not its to judge, and loses none of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from support.message_stores import PATIENCE, awaited, ports

from sentinel.cluster import client, failover
from sentinel.cluster.agent_role import ORPHANED_SECONDS, Nodes
from sentinel.cluster.failover import Heir
from sentinel.cluster.spool import Spool
from sentinel.model.counters import Tally
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import records_of
from sentinel.store.database import connect, transaction
from sentinel.transport.identity import Identity
from sentinel.transport.rendezvous import Meeting

MEET = Meeting("127.0.0.1", "29500", "job", -1)
FIRST = Identity("mine", 0, 0, 0, 4, 2, "a", replace(MEET, node=0))
SECOND = Identity("mine", 0, 2, 0, 4, 2, "b", replace(MEET, node=1))


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Nobody waits for long in a test."""
    monkeypatch.setattr(client, "FIRST_PAUSE", 0.05)
    monkeypatch.setattr(client, "LONGEST_PAUSE", 0.2)
    monkeypatch.setattr(client, "EXCHANGE_SECONDS", 0.02)


class House:
    """The part of an agent in the cluster, on a node of its own; its turns are an agent's."""

    def __init__(self, path, first, port):
        self.path, self.first, self.port, self.now = path, first, port, 1_000_000.0
        self.tally, self.judged = Tally(), []
        self.begin()

    def begin(self):
        self.connection = connect(self.path)
        self.nodes = Nodes(
            "mine",
            self.connection,
            self.tally,
            lambda: self.first,
            head=f"127.0.0.1:{self.port}",
            token="token",
            clock=lambda: self.now,
        )

    def turn(self, *local, seconds=0.05):
        self.now += seconds
        records = self.nodes.turn(local)
        if records or self.nodes.due:
            with transaction(self.connection):
                self.nodes.keep()
        self.nodes.kept()
        self.judged += records_of(records)
        return records

    def kill(self):
        """Nothing of it is left but its database."""
        self.nodes.stop()
        self.connection.close()

    def steps(self):
        return sorted((r.rank, r.step) for r in self.judged if r.event is Event.STEP)


@pytest.fixture
def house(tmp_path):
    made, port = [], ports()[0]

    def make(first):
        made.append(House(tmp_path / f"{len(made)}.db", first, port))
        return made[-1]

    yield make
    for each in made:
        each.kill()


def word(rank, step, event=Event.STEP):
    values = {"world_size": 4.0} if event is Event.START else {"loss": 1.0}
    return Record("mine", rank, step, 1e6, event, values, beat=step, sequence=step + 1)


def tick(step=1):
    return Record("mine", WHOLE_RUN, step, 1e6, Event.TICK, facts={"state": "running"})


def linked(head, post):
    """Whether the two have found each other; they take a turn."""
    head.turn()
    post.turn()
    return post.nodes.post.link.linked


def test_before_any_rank_is_there_it_has_no_part(house):
    nobody = house(None)

    assert nobody.turn() == []
    assert (nobody.nodes.role, nobody.nodes.due, nobody.nodes.over) == ("", False, True)
    assert nobody.nodes.state()["role"] == ""


def test_with_all_ranks_here_all_is_as_it_was_read(house):
    alone = house(replace(FIRST, local_world_size=4))
    told = [word(rank, 1) for rank in range(4)]

    assert alone.turn(*told, tick()) == [*told, tick()]
    assert (alone.nodes.role, alone.nodes.due, alone.nodes.over) == ("alone", False, True)


@pytest.mark.parametrize(
    ("who", "role"),
    [
        (FIRST, "head"),
        (SECOND, "post"),
        # Of torchrun, the node of rank 0 need not have it as its lowest.
        (replace(FIRST, rank=1, local_rank=1, meeting=replace(MEET, node=0)), "head"),
        # Nobody told the node's number: rank and local rank tell.
        (replace(FIRST, rank=1, local_rank=1, meeting=MEET), "head"),
        (replace(SECOND, meeting=MEET), "post"),
    ],
)
def test_the_node_of_rank_0_judges_and_the_others_hand_over(house, who, role):
    agent = house(who)
    agent.turn()

    assert agent.nodes.role == role


def test_what_one_node_reads_the_other_judges_once_in_its_order(house):
    head, post = house(FIRST), house(SECOND)
    awaited(lambda: linked(head, post), "they have found each other")
    for rank in (2, 3):
        post.turn(word(rank, 0, Event.START))
    for step in range(1, 20):
        post.turn(word(2, step), word(3, step), tick(step))
        head.turn(word(0, step), word(1, step), tick(step))
    awaited(
        lambda: head.turn() is None or post.turn() is None or post.nodes.over, "all is handed over"
    )

    assert head.steps() == [(rank, step) for rank in range(4) for step in range(1, 20)]
    in_order = [r.step for r in head.judged if r.rank == 2]
    assert in_order == sorted(in_order)
    assert post.judged == []


def test_a_head_that_is_killed_loses_nothing_and_judges_nothing_twice(house):
    head, post = house(FIRST), house(SECOND)
    step = count(1)
    awaited(lambda: linked(head, post), "they have found each other")
    for _ in range(3):
        for _ in range(20):
            post.turn(word(2, next(step)))
            head.turn()
        head.kill()
        awaited(
            lambda: post.turn(word(2, next(step))) or not post.nodes.post.link.linked, "it is gone"
        )
        head.begin()
        awaited(lambda: linked(head, post), "it is back")
    awaited(
        lambda: head.turn() is None or post.turn() is None or post.nodes.over, "all is handed over"
    )

    last = next(step)
    assert head.steps() == [(2, number) for number in range(1, last)]


def test_a_node_that_is_killed_loses_nothing_and_says_nothing_twice(house):
    head, post = house(FIRST), house(SECOND)
    step = count(1)
    for _ in range(3):
        awaited(lambda: linked(head, post), "they have found each other")
        for _ in range(20):
            post.turn(word(2, next(step)))
            head.turn()
        post.kill()
        post.begin()
    awaited(lambda: linked(head, post), "they have found each other")
    awaited(
        lambda: head.turn() is None or post.turn() is None or post.nodes.over, "all is handed over"
    )

    assert head.steps() == [(2, number) for number in range(1, next(step))]


def test_a_node_that_never_reaches_a_head_judges_its_own_ranks_after_a_while(house):
    post = house(SECOND)
    post.turn(word(2, 0, Event.START))
    for step in range(1, int(ORPHANED_SECONDS)):
        post.turn(word(2, step), tick(step), seconds=1.0)
    assert (post.nodes.role, post.judged) == ("post", [])

    for step in range(int(ORPHANED_SECONDS), int(ORPHANED_SECONDS) + 20):
        post.turn(word(2, step), tick(step), seconds=1.0)

    assert post.nodes.role == "alone"
    told = [r.step for r in post.judged if r.event is not Event.TICK]
    assert told == [*range(int(ORPHANED_SECONDS) + 20)]
    assert [r for r in post.judged if r.event is Event.TICK], "time goes on as well"
    assert post.nodes.over


def test_an_agent_that_was_stopped_does_not_take_itself_for_an_orphan(house):
    post = house(SECOND)
    post.turn(word(2, 1))
    post.turn(seconds=10 * ORPHANED_SECONDS)

    assert post.nodes.role == "post"


def test_who_was_alone_judges_on_when_the_run_has_more_nodes(house):
    agent = house(replace(FIRST, world_size=2))
    agent.turn(word(0, 1))
    assert agent.nodes.role == "alone"

    agent.first = replace(FIRST, attempt=1)
    agent.turn(word(0, 2))

    assert agent.nodes.role == "head"
    assert agent.steps() == [(0, 1), (0, 2)]


def test_an_heir_judges_what_was_kept_before_what_is_read(tmp_path, monkeypatch):
    monkeypatch.setattr(failover, "CHUNK_BYTES", 400)
    connection = connect(tmp_path / "sentinel.db")
    spool = Spool(connection, Tally())
    for step in range(1, 6):
        spool.put([word(2, step)])
    agent, judged = Heir("mine", spool), []
    for step in range(6, 30):
        judged += agent.turn([word(2, step), tick(step)])
        agent.keep()

    assert [r.step for r in judged if r.event is Event.STEP] == [*range(1, 30)]
    assert spool.bytes == 0


def test_an_heir_that_is_killed_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(failover, "CHUNK_BYTES", 1)
    connection = connect(tmp_path / "sentinel.db")
    for step in range(1, 6):
        Spool(connection, Tally()).put([word(2, step)])
    judged = []
    for step in range(6, 12):
        agent = Heir("mine", Spool(connection, Tally()))
        judged += agent.turn([word(2, step)])
        agent.keep()
    agent = Heir("mine", Spool(connection, Tally()))
    while len(judged) < 11:
        judged += agent.turn([])
        agent.keep()

    assert [record.step for record in judged] == [*range(1, 12)]


def test_whoever_stops_leaves_no_thread_behind(house):
    head, post = house(FIRST), house(SECOND)
    awaited(lambda: linked(head, post), "they have found each other")
    threads = head.nodes.head.hub._thread, post.nodes.post.link._thread

    head.nodes.stop()
    post.nodes.stop()

    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
