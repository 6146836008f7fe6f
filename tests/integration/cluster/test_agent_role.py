"""Nodes: each agent takes its part, hands over what is not its to judge, and loses none of it."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from support.message_stores import PATIENCE, awaited, ports

from sentinel.cluster import client, failover
from sentinel.cluster.agent_role import HEAD_SEARCH_TIMEOUT_SECONDS, AgentRole
from sentinel.cluster.failover import Failover
from sentinel.cluster.spool import Spool
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import iter_records
from sentinel.store.database import connect, transaction
from sentinel.transport.identity import Identity
from sentinel.transport.rendezvous import Rendezvous

MEET = Rendezvous("127.0.0.1", "29500", "job", -1)
FIRST = Identity("mine", 0, 0, 0, 4, 2, "a", replace(MEET, node_rank=0))
SECOND = Identity("mine", 0, 2, 0, 4, 2, "b", replace(MEET, node_rank=1))


@pytest.fixture(autouse=True)
def soon(monkeypatch):
    """Nobody waits for long in a test."""
    monkeypatch.setattr(client, "INITIAL_BACKOFF_SECONDS", 0.05)
    monkeypatch.setattr(client, "MAX_BACKOFF_SECONDS", 0.2)
    monkeypatch.setattr(client, "EXCHANGE_INTERVAL_SECONDS", 0.02)


class House:
    """The part of an agent in the cluster, on a node of its own; its turns are an agent's."""

    def __init__(self, path, first, port):
        self.path, self.first, self.port, self.now = path, first, port, 1_000_000.0
        self.tally, self.judged = Counters(), []
        self.begin()

    def begin(self):
        self.connection = connect(self.path)
        self.nodes = AgentRole(
            "mine",
            self.connection,
            self.tally,
            lambda: self.first,
            configured_head=f"127.0.0.1:{self.port}",
            token="token",
            clock=lambda: self.now,
        )

    def turn(self, *local, seconds=0.05):
        self.now += seconds
        records = self.nodes.exchange(local)
        if records or self.nodes.has_unsaved_changes:
            with transaction(self.connection):
                self.nodes.persist()
        self.nodes.after_commit()
        self.judged += iter_records(records)
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
    return Record("mine", rank, step, 1e6, event, values, step_index=step, sequence=step + 1)


def tick(step=1):
    return Record("mine", WHOLE_RUN, step, 1e6, Event.HEARTBEAT, attributes={"state": "running"})


def linked(head, post):
    """Whether the two have found each other; they take a turn."""
    head.turn()
    post.turn()
    return post.nodes.follower.client.is_connected


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
        (replace(FIRST, rank=1, local_rank=1, rendezvous=replace(MEET, node_rank=0)), "head"),
        # Nobody told the node's number: rank and local rank tell.
        (replace(FIRST, rank=1, local_rank=1, rendezvous=MEET), "head"),
        (replace(SECOND, rendezvous=MEET), "post"),
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
            lambda: post.turn(word(2, next(step))) or not post.nodes.follower.client.is_connected,
            "it is gone",
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
    for step in range(1, int(HEAD_SEARCH_TIMEOUT_SECONDS)):
        post.turn(word(2, step), tick(step), seconds=1.0)
    assert (post.nodes.role, post.judged) == ("post", [])

    for step in range(int(HEAD_SEARCH_TIMEOUT_SECONDS), int(HEAD_SEARCH_TIMEOUT_SECONDS) + 20):
        post.turn(word(2, step), tick(step), seconds=1.0)

    assert post.nodes.role == "alone"
    told = [r.step for r in post.judged if r.event is not Event.HEARTBEAT]
    assert told == [*range(int(HEAD_SEARCH_TIMEOUT_SECONDS) + 20)]
    assert [r for r in post.judged if r.event is Event.HEARTBEAT], "time goes on as well"
    assert post.nodes.over


def test_an_agent_that_was_stopped_does_not_take_itself_for_an_orphan(house):
    post = house(SECOND)
    post.turn(word(2, 1))
    post.turn(seconds=10 * HEAD_SEARCH_TIMEOUT_SECONDS)

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
    spool = Spool(connection, Counters())
    for step in range(1, 6):
        spool.append([word(2, step)])
    agent, judged = Failover("mine", spool), []
    for step in range(6, 30):
        judged += agent.drain([word(2, step), tick(step)])
        agent.persist()

    assert [r.step for r in judged if r.event is Event.STEP] == [*range(1, 30)]
    assert spool.size_bytes == 0


def test_an_heir_that_is_killed_goes_on_where_it_was(tmp_path, monkeypatch):
    monkeypatch.setattr(failover, "CHUNK_BYTES", 1)
    connection = connect(tmp_path / "sentinel.db")
    for step in range(1, 6):
        Spool(connection, Counters()).append([word(2, step)])
    judged = []
    for step in range(6, 12):
        agent = Failover("mine", Spool(connection, Counters()))
        judged += agent.drain([word(2, step)])
        agent.persist()
    agent = Failover("mine", Spool(connection, Counters()))
    while len(judged) < 11:
        judged += agent.drain([])
        agent.persist()

    assert [record.step for record in judged] == [*range(1, 12)]


def test_whoever_stops_leaves_no_thread_behind(house):
    head, post = house(FIRST), house(SECOND)
    awaited(lambda: linked(head, post), "they have found each other")
    threads = head.nodes.head_address.server._thread, post.nodes.follower.client._thread

    head.nodes.stop()
    post.nodes.stop()

    for thread in threads:
        thread.join(PATIENCE)
        assert not thread.is_alive()
