"""Head: what all nodes say is one run's, taken once, and nobody who is only late is lost."""

from __future__ import annotations

from collections import deque
from dataclasses import dataclass, field

import pytest
from boards import refusals

from sentinel.cluster.head import Head
from sentinel.cluster.hub import Hello
from sentinel.cluster.roster import FOR_GOOD_SECONDS, LOST_SECONDS, RETURN_SECONDS
from sentinel.outlets.database import connect, transaction
from sentinel.record import WHOLE_RUN, Event, Record
from sentinel.tally import Tally
from sentinel.wire.parcel import Writer


@dataclass
class FakeHub:
    """What a head sees of its hub."""

    at: str = ""
    over: bool = False
    port: int = 1
    trouble: str = ""
    waiting: deque[Hello] = field(default_factory=deque)
    parcels: deque[tuple[int, bytes]] = field(default_factory=deque)
    answers: list[tuple[int, int, int, bool]] = field(default_factory=list)
    dropped: list[int] = field(default_factory=list)

    def hellos(self):
        found, self.waiting = [*self.waiting], deque()
        return found

    def arrived(self):
        found, self.parcels = [*self.parcels], deque()
        return found

    def answer(self, slot, number, row, *, deputy=False):
        self.answers.append((slot, number, row, deputy))

    def drop(self, slot):
        self.dropped.append(slot)


@dataclass
class Node:
    """A node of two ranks, the head's own node being that of ranks 0 and 1."""

    house: House
    host: str
    ranks: tuple[int, ...]
    spool: str = "spool"
    run: str = "mine"
    slot: int = 0
    row: int = 0
    off: float = 0.0

    def hello(self, spool=""):
        self.house.slots += 1
        self.slot, self.writer, self.spool = self.house.slots, Writer(), spool or self.spool
        card = {"host": self.host, "run": self.run, "spool": self.spool}
        self.house.hub.waiting.append(Hello(self.slot, card))

    def parcel(self, *records, row=None):
        first = (self.row if row is None else row) + 1
        last = first if records else first - 1
        self.row = max(self.row, last)
        data = self.writer.write(records, first, last, self.house.now + self.off)
        self.house.hub.parcels.append((self.slot, data))
        return data

    def says(self, event=Event.STEP, step=1, attempt=0, **facts):
        return [self.word(rank, event, step, attempt, **facts) for rank in self.ranks]

    def word(self, rank, event=Event.STEP, step=1, attempt=0, **facts):
        values = {"world_size": float(self.house.world)} if event is Event.START else {"loss": 1.0}
        sequence = {Event.START: 1, Event.STOP: 1000}.get(event, step + 1)
        return Record(
            self.run,
            rank,
            step,
            self.house.now + self.off,
            event,
            values,
            facts,
            attempt=attempt,
            beat=step,
            sequence=sequence,
        )

    def tick(self, state="running", attempt=0):
        values = {"ranks_running": float(len(self.ranks)), "idle_seconds": 0.0}
        facts = {"state": state}
        now = self.house.now + self.off
        return Record(
            self.run, WHOLE_RUN, 1, now, Event.TICK, values, facts, attempt=attempt, beat=1
        )


class House:
    """A head with a clock of its own, whose turns are an agent's."""

    def __init__(self, path, world=4):
        self.path, self.world, self.now, self.slots = path, world, 1_000_000.0, 0
        self.tally = Tally()
        self.own = Node(self, "a", (0, 1))
        self.begin()

    def begin(self, path=None):
        """A new agent, with the database that there is."""
        self.connection = connect(path or self.path)
        self.hub = FakeHub()
        self.head = Head("run", "a", self.connection, self.hub, self.tally, lambda: self.now)

    def turn(self, *local, seconds=0.5):
        self.now += seconds
        records = self.head.turn(local)
        if records or self.head.due:
            with transaction(self.connection):
                self.head.keep()
        self.head.kept()
        return records

    def wait(self, seconds, *, others=(), local=True):
        """Turns with ticks of our node, and of the others that are there."""
        found = []
        for _ in range(int(seconds * 2)):
            for node in others:
                node.parcel(node.tick())
            found += self.turn(*[self.own.tick()] * local)
        return found

    def node(self, host="b", ranks=(2, 3), **more):
        node = Node(self, host, ranks, **more)
        node.hello()
        self.turn()
        return node

    def running(self):
        """All nodes have begun; the other one."""
        self.turn(*self.own.says(Event.START))
        node = self.node()
        node.parcel(*node.says(Event.START), node.tick())
        self.turn(self.own.tick())
        return node


@pytest.fixture
def house(tmp_path):
    return House(tmp_path / "sentinel.db")


def told(records, event=Event.STEP):
    return [(r.rank, r.attempt, r.step) for r in records if r.event is event]


def last_tick(records):
    return [record for record in records if record.event is Event.TICK][-1]


def test_records_of_all_nodes_are_those_of_one_run(house):
    node = house.running()
    node.parcel(*node.says(step=5))

    records = house.turn(*house.own.says(step=5))

    assert told(records) == [(0, 0, 5), (1, 0, 5), (2, 0, 5), (3, 0, 5)]
    assert {record.run for record in records if record.rank >= 2} == {"run"}


def test_a_parcel_is_confirmed_only_once_it_is_kept(house):
    node = house.running()
    house.hub.answers.clear()
    node.parcel(*node.says(step=1))

    house.head.turn(())
    assert house.hub.answers == []
    house.head.kept()
    ((slot, number, row, _),) = house.hub.answers
    assert (slot, number, row) == (node.slot, 2, 2)


def test_a_head_that_dies_between_commit_and_answer_takes_nothing_twice(house):
    node = house.running()
    node.parcel(*node.says(step=1))
    house.head.turn(())
    with transaction(house.connection):
        house.head.keep()
    house.connection.close()

    house.begin()
    node.hello()
    house.turn()
    assert house.hub.answers == [(node.slot, 0, 2, False)]
    node.parcel(*node.says(step=2))
    assert told(house.turn()) == [(2, 0, 2), (3, 0, 2)]


def test_a_head_that_dies_before_its_commit_is_told_all_of_it_again(house):
    node = house.running()
    node.parcel(*node.says(step=1))
    house.head.turn(())
    house.connection.close()

    house.begin()
    node.hello()
    house.turn()
    assert house.hub.answers == [(node.slot, 0, 1, False)]
    node.parcel(*node.says(step=1), *node.says(step=2), row=1)
    assert told(house.turn()) == [(2, 0, 1), (3, 0, 1), (2, 0, 2), (3, 0, 2)]


def test_a_head_that_lost_its_database_takes_the_nodes_from_where_they_are(house, tmp_path):
    house.running()
    house.begin(tmp_path / "other.db")
    node = house.node()
    assert house.hub.answers == [(node.slot, 0, 0, False)]

    node.parcel(*node.says(step=9), row=7)

    assert told(house.turn()) == [(2, 0, 9), (3, 0, 9)]
    assert refusals(house.tally)["gap"] == 7.0


def test_a_node_that_lost_its_database_says_all_again_and_is_taken_once(house):
    node = house.running()
    node.parcel(*node.says(step=1))
    house.turn()
    node.hello(spool="another")
    house.turn()
    node.row = 0
    node.parcel(*node.says(Event.START), *node.says(step=1), *node.says(step=2))

    assert told(house.turn()) == [(2, 0, 2), (3, 0, 2)]
    assert refusals(house.tally)["repeated"] == 4.0


def test_a_node_that_comes_again_has_one_slot(house):
    node = house.running()
    old = node.slot
    node.hello()
    house.turn()
    assert house.hub.dropped == [old]

    house.hub.parcels.append((old, Writer().write(node.says(step=1), 2, 2, 0.0)))
    assert told(house.turn()) == []
    node.parcel(*node.says(step=1))
    assert told(house.turn()) == [(2, 0, 1), (3, 0, 1)]


@pytest.mark.parametrize("what", ["damaged", "repeated", "gap"])
def test_a_parcel_that_is_not_the_next_is_counted_and_its_node_begins_anew(house, what):
    node = house.running()
    data = node.parcel(*node.says(step=1))
    if what == "gap":
        house.hub.parcels.clear()
        node.parcel(*node.says(step=2))
    house.turn()
    if what == "damaged":
        house.hub.parcels.append((node.slot, b"garbage"))
    if what == "repeated":
        house.hub.parcels.append((node.slot, data))
    house.turn()

    assert refusals(house.tally) == {what: 1.0}
    assert house.hub.dropped == [node.slot]
    node.hello()
    house.turn()
    node.row = 2 if what != "gap" else 1
    node.parcel(*node.says(step=2))
    assert told(house.turn()) == [(2, 0, 2), (3, 0, 2)]


def test_attempts_that_nodes_count_for_themselves_are_one_of_the_run(house):
    house.running()
    late = house.node("c", (2, 3), run="other")
    house.turn(*house.own.says(Event.START, attempt=1))
    late.parcel(*late.says(Event.START, attempt=7), *late.says(step=1, attempt=7))

    records = house.turn()

    assert told(records, Event.START) == [(2, 1, 1), (3, 1, 1)]
    assert told(records) == [(2, 1, 1), (3, 1, 1)]


def test_which_attempts_are_the_runs_survives_the_head(house):
    node = house.running()
    house.turn(*house.own.says(Event.START, attempt=1))
    node.parcel(*node.says(Event.START, attempt=4))
    house.turn()
    house.connection.close()

    house.begin()
    node.hello()
    house.turn()
    node.parcel(*node.says(step=3, attempt=4))
    assert told(house.turn()) == [(2, 1, 3), (3, 1, 3)]


def test_all_ranks_of_the_run_are_expected(house):
    (first, *_) = house.turn(*house.own.says(Event.START))

    assert first.values["expected_ranks"] == 4.0


@pytest.mark.parametrize("off", [3600.0, -3600.0])
def test_times_of_a_node_whose_clock_is_off_are_ours(house, off):
    house.turn(*house.own.says(Event.START))
    node = house.node(off=off)
    node.parcel(*node.says(Event.START), *node.says(step=1))

    records = house.turn(seconds=0.0)

    assert {record.time for record in records} == {house.now}
    assert house.head.state()[1]["skew_seconds"] == -off


def test_the_ticks_of_all_nodes_are_one(house):
    node = house.running()
    node.parcel(node.tick())

    (tick,) = house.turn(house.own.tick())

    assert tick.rank == WHOLE_RUN
    assert (tick.values["nodes"], tick.values["nodes_lost"]) == (2.0, 0.0)
    assert tick.values["ranks_running"] == 4.0


def test_a_node_that_falls_silent_is_lost_and_is_back_once_it_is_heard(house):
    node = house.running()
    assert last_tick(house.wait(LOST_SECONDS - 1)).values["nodes_lost"] == 0.0
    lost = last_tick(house.wait(2))
    assert (lost.values["nodes_lost"], lost.facts["lost_nodes"]) == (1.0, "b")
    assert lost.facts["lost"] == "2,3"
    assert [each["state"] for each in house.head.state()] == ["up", "lost"]

    node.parcel(node.tick())
    assert last_tick(house.wait(1)).values["nodes_lost"] == 0.0


def test_a_node_whose_ranks_have_ended_is_not_lost(house):
    node = house.running()
    node.parcel(*node.says(Event.STOP, outcome="finished"), node.tick("finished"))

    tick = last_tick(house.wait(LOST_SECONDS + 5))

    assert tick.values["nodes_lost"] == 0.0
    assert [each["state"] for each in house.head.state()] == ["up", "ended"]


def test_a_head_that_was_stopped_holds_nobody_for_lost(house):
    node = house.running()
    house.turn(seconds=600.0)
    tick = last_tick(house.turn(house.own.tick()))
    assert tick.values["nodes_lost"] == 0.0

    node.parcel(node.tick())
    assert last_tick(house.wait(LOST_SECONDS - 2)).values["nodes_lost"] == 0.0


@pytest.mark.parametrize("seconds", [3600.0, -3600.0])
def test_a_clock_of_the_heads_that_steps_holds_nobody_for_lost(house, seconds):
    house.running()
    house.turn(seconds=seconds)

    assert last_tick(house.turn(house.own.tick())).values["nodes_lost"] == 0.0


def test_a_node_that_never_comes_back_to_a_head_that_was_killed_is_lost(house):
    house.running()
    house.connection.close()
    house.begin()

    ticks = house.wait(RETURN_SECONDS + LOST_SECONDS - 2)
    assert last_tick(ticks).values["nodes_lost"] == 0.0
    assert last_tick(house.wait(4)).facts["lost_nodes"] == "b"


def test_the_node_of_the_lowest_rank_that_is_heard_is_the_deputy(house):
    house.world = 6
    second, first = house.running(), house.node("c", (4, 5))
    first.parcel(*first.says(Event.START))
    house.turn(house.own.tick())
    house.turn(house.own.tick())

    house.hub.answers.clear()
    for node in (first, second):
        node.parcel(node.tick())
    house.turn()
    assert {slot: deputy for slot, _, _, deputy in house.hub.answers} == {
        first.slot: False,
        second.slot: True,
    }
    house.wait(LOST_SECONDS + 2, others=[first])
    assert house.hub.answers[-1][0] == first.slot
    assert house.hub.answers[-1][3]


def test_a_run_is_over_once_all_ranks_of_all_nodes_have_ended(house):
    node = house.running()
    house.turn(*house.own.says(Event.STOP, outcome="finished"))
    assert not house.head.over

    node.parcel(*node.says(Event.STOP, outcome="finished"))
    house.turn()
    assert house.head.over


def test_others_may_leave_first(house):
    node = house.running()
    node.parcel(*node.says(Event.STOP, outcome="finished"))
    house.wait(2 * FOR_GOOD_SECONDS)
    assert not house.head.over

    house.turn(*house.own.says(Event.STOP, outcome="finished"))
    assert house.head.over


def test_nodes_that_never_come_are_not_waited_for_for_ever(house):
    house.turn(*house.own.says(Event.START))
    house.turn(*house.own.says(Event.STOP, outcome="finished"))
    assert not house.head.over

    house.wait(FOR_GOOD_SECONDS + 1)
    assert house.head.over


def test_ranks_of_a_node_that_is_lost_for_good_have_ended_once_all_others_have(house):
    house.running()
    house.turn(*house.own.says(Event.STOP, outcome="finished"))

    records = house.wait(FOR_GOOD_SECONDS + 2)

    ends = [r for r in records if r.event is Event.STOP]
    assert [(end.rank, end.facts["outcome"], end.facts["lost"]) for end in ends] == [
        (2, "died", "b"),
        (3, "died", "b"),
    ]
    assert house.head.over
    assert not [r for r in house.wait(5) if r.event is Event.STOP]


def test_while_our_own_ranks_run_a_lost_node_is_waited_for(house):
    house.running()

    records = house.wait(3 * FOR_GOOD_SECONDS)

    assert not [record for record in records if record.event is Event.STOP]


def test_a_flood_of_hellos_is_answered_and_nothing_else_changes(house):
    house.running()
    for number in range(500):
        Node(house, f"host-{number}", (), run=f"r{number}").hello()
    house.turn()

    assert len(house.hub.answers) >= 500
    assert last_tick(house.turn(house.own.tick())).values["nodes"] == 2.0


def test_nodes_that_share_a_name_are_still_heard_each(house):
    """Containers that were all given one host name, and one run id."""
    house.world = 6
    one = house.running()
    two = Node(house, "b", (4, 5), spool="of the other")
    seen = []
    for step in range(1, 6):
        for node in (one, two):
            node.hello()
            house.turn()
            (row,) = [row for slot, _, row, _ in house.hub.answers[-1:] if slot == node.slot]
            node.row = max(node.row, row)
            node.parcel(*(node.says(Event.START) if step == 1 else ()), *node.says(step=step))
            seen += told(house.turn())

    assert sorted(seen) == [(rank, 0, step) for rank in (2, 3, 4, 5) for step in range(1, 6)]


def test_what_rank_0_gathered_leaves_its_place_to_the_ranks_own_node(house):
    """A collective that ends is followed by the ranks' own agents, in the attempt that there is."""
    gathered = [house.own.word(rank, Event.START, gathered="yes") for rank in (2, 3)]
    house.turn(*house.own.says(Event.START), *gathered)
    node = house.node()
    node.parcel(*node.says(Event.START), *node.says(step=3))

    records = house.turn(*house.own.says(step=3))

    assert told(records) == [(0, 0, 3), (1, 0, 3), (2, 0, 3), (3, 0, 3)]
    assert house.head.generations.current == 0
