"""Agents decide their roles, and each record is evaluated once by one of them."""

from __future__ import annotations

from dataclasses import replace
from itertools import count

import pytest
from support.message_stores import TIMEOUT_SECONDS, await_condition, free_ports

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

RENDEZVOUS = Rendezvous("127.0.0.1", "29500", "job", -1)
FIRST = Identity("mine", 0, 0, 0, 4, 2, "a", replace(RENDEZVOUS, node_rank=0))
SECOND = Identity("mine", 0, 2, 0, 4, 2, "b", replace(RENDEZVOUS, node_rank=1))


@pytest.fixture(autouse=True)
def short_delays(monkeypatch):
    monkeypatch.setattr(client, "INITIAL_BACKOFF_SECONDS", 0.05)
    monkeypatch.setattr(client, "MAX_BACKOFF_SECONDS", 0.2)
    monkeypatch.setattr(client, "EXCHANGE_INTERVAL_SECONDS", 0.02)


class AgentHarness:
    """The role of one agent, driven like its main loop."""

    def __init__(self, path, identity, port, token="token", *, all_interfaces=False):
        self.path, self.identity, self.port, self.now = path, identity, port, 1_000_000.0
        self.token, self.all_interfaces = token, all_interfaces
        self.counters, self.evaluated = Counters(), []
        self.start()

    def start(self):
        self.connection = connect(self.path)
        self.role = AgentRole(
            "mine",
            self.connection,
            self.counters,
            lambda: self.identity,
            configured_head=f"127.0.0.1:{self.port}",
            token=self.token,
            all_interfaces=self.all_interfaces,
            clock=lambda: self.now,
        )

    def exchange(self, *local, seconds=0.05):
        self.now += seconds
        records = self.role.exchange(local)
        if records or self.role.has_unsaved_changes:
            with transaction(self.connection):
                self.role.persist()
        self.role.after_commit()
        self.evaluated += iter_records(records)
        return records

    def kill(self):
        """Close all connections; the database remains."""
        self.role.stop()
        self.connection.close()

    def steps(self):
        return sorted((r.rank, r.step) for r in self.evaluated if r.event is Event.STEP)


@pytest.fixture
def make_agent(tmp_path):
    agents, port = [], free_ports()[0]

    def make(identity, **options):
        agents.append(AgentHarness(tmp_path / f"{len(agents)}.db", identity, port, **options))
        return agents[-1]

    yield make
    for each in agents:
        each.kill()


def record(rank, step, event=Event.STEP):
    values = {"world_size": 4.0} if event is Event.START else {"loss": 1.0}
    return Record("mine", rank, step, 1e6, event, values, step_index=step, sequence=step + 1)


def heartbeat(step=1):
    return Record("mine", WHOLE_RUN, step, 1e6, Event.HEARTBEAT, attributes={"state": "running"})


@pytest.mark.parametrize(
    ("token", "all_interfaces", "listen_address"),
    [("", False, "127.0.0.1"), ("token", False, "127.0.0.1"), ("token", True, "")],
)
def test_a_head_listens_at_the_interface_of_the_job(
    make_agent, token, all_interfaces, listen_address
):
    options = {"token": token, "all_interfaces": all_interfaces}
    head, follower = make_agent(FIRST, **options), make_agent(SECOND, **options)

    await_condition(lambda: exchange_both(head, follower), "the follower is connected")
    status = head.role.status()
    assert (status["listen_address"], status["has_token"]) == (listen_address, bool(token))


def exchange_both(head, follower):
    """One iteration of both agents; whether the follower is connected."""
    head.exchange()
    follower.exchange()
    return follower.role.follower.client.is_connected


def test_only_the_head_commands_and_its_report_reaches_the_followers(make_agent):
    head, follower = make_agent(FIRST), make_agent(SECOND)
    head.exchange(*(record(rank, 0, Event.START) for rank in (0, 1)))
    assert head.role.command_problem() == "its agent reaches no agent of rank 2-3"
    await_condition(lambda: exchange_both(head, follower), "the follower is connected")
    for rank in (2, 3):
        follower.exchange(record(rank, 0, Event.START))

    def is_reported():
        exchange_both(head, follower)
        head.role.publish_report({"command": {"number": 1}})
        return follower.role.received_report and not head.role.command_problem()

    await_condition(is_reported, "the follower has the report, and the head all ranks")
    assert follower.role.received_report == {"command": {"number": 1}}
    assert head.role.received_report == {}
    place = follower.role.follower.client.head_address
    problem = f"the agent of the node of {place} evaluates the run, and sends the commands"
    assert follower.role.command_problem() == problem


def test_an_agent_has_no_role_before_the_first_rank(make_agent):
    agent = make_agent(None)

    assert agent.exchange() == []
    assert (agent.role.role, agent.role.has_unsaved_changes, agent.role.finished) == (
        "",
        False,
        True,
    )
    assert agent.role.status()["role"] == ""


def test_a_single_agent_returns_the_records_unchanged(make_agent):
    agent = make_agent(replace(FIRST, local_world_size=4))
    records = [record(rank, 1) for rank in range(4)]

    assert agent.exchange(*records, heartbeat()) == [*records, heartbeat()]
    assert (agent.role.role, agent.role.has_unsaved_changes, agent.role.finished) == (
        "single",
        False,
        True,
    )


@pytest.mark.parametrize(
    ("identity", "role"),
    [
        (FIRST, "head"),
        (SECOND, "follower"),
        # With torchrun, rank 0 need not be the lowest known rank of its node.
        (replace(FIRST, rank=1, local_rank=1, rendezvous=replace(RENDEZVOUS, node_rank=0)), "head"),
        # Without the node rank, rank and local rank decide.
        (replace(FIRST, rank=1, local_rank=1, rendezvous=RENDEZVOUS), "head"),
        (replace(SECOND, rendezvous=RENDEZVOUS), "follower"),
    ],
)
def test_the_agent_of_rank_0_is_the_head_and_others_are_followers(make_agent, identity, role):
    agent = make_agent(identity)
    agent.exchange()

    assert agent.role.role == role


def test_the_head_evaluates_each_record_of_a_follower_once_in_order(make_agent):
    head, follower = make_agent(FIRST), make_agent(SECOND)
    await_condition(lambda: exchange_both(head, follower), "the follower is connected")
    for rank in (2, 3):
        follower.exchange(record(rank, 0, Event.START))
    for step in range(1, 20):
        follower.exchange(record(2, step), record(3, step), heartbeat(step))
        head.exchange(record(0, step), record(1, step), heartbeat(step))
    await_condition(
        lambda: head.exchange() is None or follower.exchange() is None or follower.role.finished,
        "all records are sent",
    )

    assert head.steps() == [(rank, step) for rank in range(4) for step in range(1, 20)]
    in_order = [r.step for r in head.evaluated if r.rank == 2]
    assert in_order == sorted(in_order)
    assert follower.evaluated == []


def test_a_killed_head_evaluates_each_record_once(make_agent):
    head, follower = make_agent(FIRST), make_agent(SECOND)
    step = count(1)
    await_condition(lambda: exchange_both(head, follower), "the follower is connected")
    for _ in range(3):
        for _ in range(20):
            follower.exchange(record(2, next(step)))
            head.exchange()
        head.kill()
        await_condition(
            lambda: (
                follower.exchange(record(2, next(step)))
                or not follower.role.follower.client.is_connected
            ),
            "the follower is disconnected",
        )
        head.start()
        await_condition(lambda: exchange_both(head, follower), "the follower is connected again")
    await_condition(
        lambda: head.exchange() is None or follower.exchange() is None or follower.role.finished,
        "all records are sent",
    )

    last = next(step)
    assert head.steps() == [(2, number) for number in range(1, last)]


def test_each_record_of_a_killed_follower_is_evaluated_once(make_agent):
    head, follower = make_agent(FIRST), make_agent(SECOND)
    step = count(1)
    for _ in range(3):
        await_condition(lambda: exchange_both(head, follower), "the follower is connected")
        for _ in range(20):
            follower.exchange(record(2, next(step)))
            head.exchange()
        follower.kill()
        follower.start()
    await_condition(lambda: exchange_both(head, follower), "the follower is connected")
    await_condition(
        lambda: head.exchange() is None or follower.exchange() is None or follower.role.finished,
        "all records are sent",
    )

    assert head.steps() == [(2, number) for number in range(1, next(step))]


@pytest.mark.fault("T7")
def test_a_follower_that_never_reaches_a_head_becomes_single(make_agent):
    follower = make_agent(SECOND)
    follower.exchange(record(2, 0, Event.START))
    for step in range(1, int(HEAD_SEARCH_TIMEOUT_SECONDS)):
        follower.exchange(record(2, step), heartbeat(step), seconds=1.0)
    assert (follower.role.role, follower.evaluated) == ("follower", [])

    for step in range(int(HEAD_SEARCH_TIMEOUT_SECONDS), int(HEAD_SEARCH_TIMEOUT_SECONDS) + 20):
        follower.exchange(record(2, step), heartbeat(step), seconds=1.0)

    assert follower.role.role == "single"
    steps = [r.step for r in follower.evaluated if r.event is not Event.HEARTBEAT]
    assert steps == [*range(int(HEAD_SEARCH_TIMEOUT_SECONDS) + 20)]
    assert [r for r in follower.evaluated if r.event is Event.HEARTBEAT], (
        "heartbeats are evaluated too"
    )
    assert follower.role.finished


def test_a_suspended_follower_stays_a_follower(make_agent):
    follower = make_agent(SECOND)
    follower.exchange(record(2, 1))
    follower.exchange(seconds=10 * HEAD_SEARCH_TIMEOUT_SECONDS)

    assert follower.role.role == "follower"


def test_a_single_agent_becomes_the_head_when_nodes_join(make_agent):
    agent = make_agent(replace(FIRST, world_size=2))
    agent.exchange(record(0, 1))
    assert agent.role.role == "single"

    agent.identity = replace(FIRST, attempt=1)
    agent.exchange(record(0, 2))

    assert agent.role.role == "head"
    assert agent.steps() == [(0, 1), (0, 2)]


def test_a_failover_returns_spooled_records_before_new_ones(tmp_path, monkeypatch):
    monkeypatch.setattr(failover, "CHUNK_BYTES", 400)
    connection = connect(tmp_path / "sentinel.db")
    spool = Spool(connection, Counters())
    for step in range(1, 6):
        spool.append([record(2, step)])
    agent, evaluated = Failover("mine", spool), []
    for step in range(6, 30):
        evaluated += agent.drain([record(2, step), heartbeat(step)])
        agent.persist()

    assert [r.step for r in evaluated if r.event is Event.STEP] == [*range(1, 30)]
    assert spool.size_bytes == 0


def test_a_killed_failover_continues_in_its_spool(tmp_path, monkeypatch):
    monkeypatch.setattr(failover, "CHUNK_BYTES", 1)
    connection = connect(tmp_path / "sentinel.db")
    for step in range(1, 6):
        Spool(connection, Counters()).append([record(2, step)])
    evaluated = []
    for step in range(6, 12):
        agent = Failover("mine", Spool(connection, Counters()))
        evaluated += agent.drain([record(2, step)])
        agent.persist()
    agent = Failover("mine", Spool(connection, Counters()))
    while len(evaluated) < 11:
        evaluated += agent.drain([])
        agent.persist()

    assert [record.step for record in evaluated] == [*range(1, 12)]


def test_a_stopped_agent_has_no_threads(make_agent):
    head, follower = make_agent(FIRST), make_agent(SECOND)
    await_condition(lambda: exchange_both(head, follower), "the follower is connected")
    threads = head.role.head.server._thread, follower.role.follower.client._thread

    head.role.stop()
    follower.role.stop()

    for thread in threads:
        thread.join(TIMEOUT_SECONDS)
        assert not thread.is_alive()
