"""Parting: when a collective is over, ranks of other nodes are waited for as at a start."""

from __future__ import annotations

import pytest

from sentinel.aggregate.aligner import Aligner
from sentinel.aggregate.rank_membership import NODE_JOIN_SECONDS
from sentinel.model.record import WHOLE_RUN, Event, Record

LEFT = "off: timed out: rank 3 did not come"


class Run:
    """Four ranks on two nodes, of which rank 0 gathers those of the other."""

    weight = 1.0

    def __init__(self):
        self.aligner, self.now, self.made = Aligner(), 100.0, []
        for rank in range(4):
            told = {"via_collective": "yes"} if rank > 1 else {}
            self.say(rank, Event.START, 0, told, local_world_size=2.0, expected_ranks=4.0)
        for step in range(1, 6):
            self.steps(step, range(4))
        self.wait(1.0)

    def take(self, record):
        made = [each for each in self.aligner.process(record) if each.rank == WHOLE_RUN]
        self.made += [each for each in made if each.event in (Event.STEP, Event.STOP)]

    def say(self, rank, event, step=0, facts=None, **values):
        self.take(Record("run", rank, step, self.now, event, values, facts or {}, step_index=step))

    def steps(self, step, ranks):
        for rank in ranks:
            self.say(rank, Event.STEP, step, loss=float(rank), weight=self.weight)

    def wait(self, seconds, state="running"):
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            tick = Record(
                "run", WHOLE_RUN, 0, self.now, Event.HEARTBEAT, attributes={"state": state}
            )
            self.take(tick)

    def part(self):
        """Rank 0 gathers no more: rank 2 said that it goes on, of rank 3 nothing is known."""
        self.say(0, Event.METADATA, facts={"collective": LEFT})
        for rank, outcome in ((2, "finished"), (3, "unknown")):
            self.leave(rank, outcome)

    def leave(self, rank, outcome):
        """What rank 0 says of a rank, as it gathers no more."""
        self.say(rank, Event.STOP, 5, {"outcome": outcome, "collective": LEFT})

    def come(self, *ranks, since=1, until):
        """Their own node's agent tells of them, from the beginning of their rings."""
        for rank in ranks:
            self.say(rank, Event.START, local_world_size=2.0, expected_ranks=4.0)
        for step in range(since, until + 1):
            self.steps(step, ranks)

    @property
    def told(self):
        return [(r.step, r.spread["loss"].count) for r in self.made if r.event is Event.STEP]


@pytest.fixture
def run():
    return Run()


@pytest.mark.parametrize("later", [0.0, 100.0], ids=["soon", "long after the start"])
def test_steps_taken_until_the_nodes_own_agent_speaks_are_told_once_with_all_ranks(run, later):
    run.wait(later)
    run.part()
    for step in range(6, 26):
        run.steps(step, (0, 1))
        run.wait(1.0)
    assert run.told == [(step, 4) for step in range(1, 6)]
    run.come(2, 3, until=25)
    run.steps(26, range(4))
    run.wait(1.0)

    assert run.told == [(step, 4) for step in range(1, 27)]


def test_where_no_agent_comes_they_are_told_without_those_ranks(run):
    run.part()
    for step in range(6, 10):
        run.steps(step, (0, 1))
    run.wait(NODE_JOIN_SECONDS)

    assert run.told[5:] == [(step, 2) for step in range(6, 10)]


def test_a_rank_that_does_not_come_is_waited_for_no_longer_than_at_a_start(run):
    run.part()
    run.steps(6, (0, 1))
    run.come(2, until=6)
    run.wait(NODE_JOIN_SECONDS)

    assert run.told[5:] == [(6, 3)]


@pytest.mark.parametrize("outcome", ["finished", "exception"])
def test_the_run_ends_with_those_that_are_known(run, outcome):
    run.part()
    for rank in (0, 1):
        run.say(rank, Event.STOP, 5, {"outcome": outcome})
    run.wait(1.0, state="failed" if outcome == "exception" else "finished")

    (end,) = [record for record in run.made if record.event is Event.STOP]
    assert (end.attributes["outcome"], end.attributes["ranks"]) == (outcome, "0,1")


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 3, 0, 1)])
@pytest.mark.parametrize("outcome", ["finished", "exception"])
def test_the_run_ends_in_whatever_order_the_ends_of_its_ranks_are_read(run, order, outcome):
    """Rank 0 says that it ended right after it let go of the others: its ring is read first."""
    run.say(0, Event.METADATA, facts={"collective": LEFT})
    for rank in order:
        elsewhere = {"outcome": "unknown", "collective": LEFT}
        run.say(rank, Event.STOP, 5 + rank, {"outcome": outcome} if rank < 2 else elsewhere)
    run.wait(1.0, state="failed" if outcome == "exception" else "finished")

    (end,) = [record for record in run.made if record.event is Event.STOP]
    assert (end.attributes["outcome"], end.attributes["ranks"], end.step) == (outcome, "0,1", 6)


@pytest.mark.parametrize("outcome", ["finished", "unknown"])
def test_a_rank_that_its_own_node_speaks_for_is_not_let_go_of_when_rank_0_does_so_late(
    run, outcome
):
    run.say(0, Event.METADATA, facts={"collective": LEFT})
    run.come(2, 3, until=6)
    for rank in (2, 3):
        run.leave(rank, outcome)
    run.steps(6, (0, 1))
    run.wait(1.0)
    run.steps(7, (0, 1))
    run.wait(5.0)
    assert run.told[-1] == (6, 4)
    run.steps(7, (2, 3))
    run.wait(1.0)

    assert run.told == [(step, 4) for step in range(1, 8)]


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_what_was_heard_from_both_counts_once(run, weight):
    """The ring of a rank holds what was gathered as well, of steps that are still open too."""
    run.weight = weight
    run.steps(6, (0, 2))
    run.steps(7, (2,))
    run.part()
    run.steps(6, (1,))
    run.steps(7, (0, 1))
    run.come(2, 3, until=7)
    run.wait(20.0)

    assert run.told == [(step, 4) for step in range(1, 8)]
    steps = [record for record in run.made if record.event is Event.STEP]
    assert [record.values["loss"] for record in steps] == [1.5] * 7
