"""After a collective ends, ranks of other nodes are awaited as at a start."""

from __future__ import annotations

import pytest

from sentinel.aggregate.aligner import Aligner
from sentinel.aggregate.rank_membership import NODE_JOIN_SECONDS
from sentinel.model.record import WHOLE_RUN, Event, Record

TURNED_OFF = "off: timed out: rank 3 did not answer"


class Run:
    """Four ranks on two nodes; rank 0 gathers the ranks of the other node."""

    weight = 1.0

    def __init__(self):
        self.aligner, self.now, self.records = Aligner(), 100.0, []
        for rank in range(4):
            attributes = {"via_collective": "yes"} if rank > 1 else {}
            self.report(rank, Event.START, 0, attributes, local_world_size=2.0, expected_ranks=4.0)
        for step in range(1, 6):
            self.steps(step, range(4))
        self.wait(1.0)

    def process(self, record):
        records = [each for each in self.aligner.process(record) if each.rank == WHOLE_RUN]
        self.records += [each for each in records if each.event in (Event.STEP, Event.STOP)]

    def report(self, rank, event, step=0, attributes=None, **values):
        self.process(
            Record("run", rank, step, self.now, event, values, attributes or {}, step_index=step)
        )

    def steps(self, step, ranks):
        for rank in ranks:
            self.report(rank, Event.STEP, step, loss=float(rank), weight=self.weight)

    def wait(self, seconds, state="running"):
        for _ in range(int(seconds * 2)):
            self.now += 0.5
            heartbeat = Record(
                "run", WHOLE_RUN, 0, self.now, Event.HEARTBEAT, attributes={"state": state}
            )
            self.process(heartbeat)

    def end_collective(self):
        """Rank 0 stops gathering: rank 2 continues, the state of rank 3 is unknown."""
        self.report(0, Event.METADATA, attributes={"collective": TURNED_OFF})
        for rank, outcome in ((2, "finished"), (3, "unknown")):
            self.release(rank, outcome)

    def release(self, rank, outcome):
        """The STOP that rank 0 writes for a rank when it stops gathering."""
        self.report(rank, Event.STOP, 5, {"outcome": outcome, "collective": TURNED_OFF})

    def report_directly(self, *ranks, since=1, until):
        """The agent of their own node reports them, from the beginning of their rings."""
        for rank in ranks:
            self.report(rank, Event.START, local_world_size=2.0, expected_ranks=4.0)
        for step in range(since, until + 1):
            self.steps(step, ranks)

    @property
    def closed_steps(self):
        return [(r.step, r.spread["loss"].count) for r in self.records if r.event is Event.STEP]


@pytest.fixture
def run():
    return Run()


@pytest.mark.parametrize("later", [0.0, 100.0], ids=["soon", "long after the start"])
def test_steps_until_the_nodes_own_agent_reports_are_combined_once_with_all_ranks(run, later):
    run.wait(later)
    run.end_collective()
    for step in range(6, 26):
        run.steps(step, (0, 1))
        run.wait(1.0)
    assert run.closed_steps == [(step, 4) for step in range(1, 6)]
    run.report_directly(2, 3, until=25)
    run.steps(26, range(4))
    run.wait(1.0)

    assert run.closed_steps == [(step, 4) for step in range(1, 27)]


def test_without_an_agent_steps_close_without_those_ranks(run):
    run.end_collective()
    for step in range(6, 10):
        run.steps(step, (0, 1))
    run.wait(NODE_JOIN_SECONDS)

    assert run.closed_steps[5:] == [(step, 2) for step in range(6, 10)]


def test_a_rank_that_does_not_report_is_awaited_no_longer_than_at_a_start(run):
    run.end_collective()
    run.steps(6, (0, 1))
    run.report_directly(2, until=6)
    run.wait(NODE_JOIN_SECONDS)

    assert run.closed_steps[5:] == [(6, 3)]


@pytest.mark.parametrize("outcome", ["finished", "exception"])
def test_the_run_ends_with_the_ranks_that_are_known(run, outcome):
    run.end_collective()
    for rank in (0, 1):
        run.report(rank, Event.STOP, 5, {"outcome": outcome})
    run.wait(1.0, state="failed" if outcome == "exception" else "finished")

    (end,) = [record for record in run.records if record.event is Event.STOP]
    assert (end.attributes["outcome"], end.attributes["ranks"]) == (outcome, "0,1")


@pytest.mark.parametrize("order", [(0, 1, 2, 3), (0, 2, 1, 3), (2, 3, 0, 1)])
@pytest.mark.parametrize("outcome", ["finished", "exception"])
def test_the_run_ends_once_in_any_order_of_stops(run, order, outcome):
    """Rank 0 stops right after it releases the other ranks: its ring is read first."""
    run.report(0, Event.METADATA, attributes={"collective": TURNED_OFF})
    for rank in order:
        elsewhere = {"outcome": "unknown", "collective": TURNED_OFF}
        run.report(rank, Event.STOP, 5 + rank, {"outcome": outcome} if rank < 2 else elsewhere)
    run.wait(1.0, state="failed" if outcome == "exception" else "finished")

    (end,) = [record for record in run.records if record.event is Event.STOP]
    assert (end.attributes["outcome"], end.attributes["ranks"], end.step) == (outcome, "0,1", 6)


@pytest.mark.parametrize("outcome", ["finished", "unknown"])
def test_a_late_release_by_rank_0_does_not_affect_a_rank_reported_by_its_own_node(run, outcome):
    run.report(0, Event.METADATA, attributes={"collective": TURNED_OFF})
    run.report_directly(2, 3, until=6)
    for rank in (2, 3):
        run.release(rank, outcome)
    run.steps(6, (0, 1))
    run.wait(1.0)
    run.steps(7, (0, 1))
    run.wait(5.0)
    assert run.closed_steps[-1] == (6, 4)
    run.steps(7, (2, 3))
    run.wait(1.0)

    assert run.closed_steps == [(step, 4) for step in range(1, 8)]


@pytest.mark.parametrize("weight", [1.0, 3.0])
def test_records_reported_by_both_agents_count_once(run, weight):
    """The ring of a rank also holds the gathered records, including those of pending steps."""
    run.weight = weight
    run.steps(6, (0, 2))
    run.steps(7, (2,))
    run.end_collective()
    run.steps(6, (1,))
    run.steps(7, (0, 1))
    run.report_directly(2, 3, until=7)
    run.wait(20.0)

    assert run.closed_steps == [(step, 4) for step in range(1, 8)]
    steps = [record for record in run.records if record.event is Event.STEP]
    assert [record.values["loss"] for record in steps] == [1.5] * 7
