"""Departed: how the rings in the others' names end, by what was heard of each, and no more."""

from __future__ import annotations

import pytest

from sentinel.aggregate.aligner import Aligner
from sentinel.client.collective import chunk, shutdown
from sentinel.client.collective.gather_group import GatherGroupError
from sentinel.client.collective.shutdown import CollectiveShutdown
from sentinel.live.liveness import LiveRank, build_heartbeat
from sentinel.model.record import UNKNOWN_OUTCOME, WHOLE_RUN, Event, Record
from sentinel.transport.identity import Identity
from sentinel.transport.process import Process
from sentinel.transport.ring import RingCursor
from sentinel.transport.ring_layout import OUTCOMES, RingHeader


class Others:
    """What rank 0 knows of four others: one raised, one goes on without us, one is gone."""

    world = 5

    def __init__(self):
        self.words = {
            1: chunk.Chunk(9, [], 0, OUTCOMES.index("exception")),
            2: chunk.Chunk(9, [], 0, chunk.STILL_RUNNING),
        }
        self.gone = {3}

    def last_words(self):
        return self.words

    def lost(self, others):
        return [other for other in others if other in self.gone]

    def dismiss(self):
        pass


class Rings:
    """The rings in the others' names, and how each was closed."""

    def __init__(self):
        self.rings = dict.fromkeys(range(1, 5))
        self.closed, self.facts, self.taken = {}, {}, []

    def take(self, chunks):
        self.taken += [rank for rank, _ in chunks]

    def put_away(self):
        pass

    def close(self, rank, outcome, facts):
        assert rank not in self.closed
        self.closed[rank], self.facts[rank] = outcome, dict(facts)
        del self.rings[rank]


@pytest.mark.parametrize(
    "why", [None, GatherGroupError("a connection is closed")], ids=["ends", "breaks"]
)
def test_a_rank_of_which_nothing_was_said_is_not_told_as_finished(why):
    rings, said = Rings(), []
    CollectiveShutdown(Others(), rings, said.append, why).close()

    assert rings.closed == {1: "exception", 2: "finished", 3: "died", 4: UNKNOWN_OUTCOME}
    assert said == ["rank 3 lost"]
    off = {"collective": "off: rank 3 lost"}
    assert rings.facts == {1: {}, 2: off, 3: off, 4: off}


def test_a_rank_that_goes_on_is_told_elsewhere_though_rank_0_ended_and_had_no_trouble():
    rings, others = Rings(), Others()
    others.gone = set()
    CollectiveShutdown(others, rings, [].append, None).close()

    assert rings.closed == {1: "exception", 2: "finished", 3: UNKNOWN_OUTCOME, 4: UNKNOWN_OUTCOME}
    assert rings.facts == {1: {}, 2: {"collective": "off: rank 0 ended"}, 3: {}, 4: {}}


def test_what_a_rank_left_is_put_away_as_it_comes_and_once(monkeypatch):
    """Its own node's agent tells all of it soon after, and then it would count for two."""
    monkeypatch.setattr(shutdown, "ANSWER_TIMEOUT_SECONDS", 1e9)
    rings, others = Rings(), Others()
    hearing = CollectiveShutdown(others, rings, [].append, ValueError("timed out"))

    assert not hearing.poll()
    assert (rings.taken, rings.closed) == ([1, 2], {1: "exception", 2: "finished"})
    assert not hearing.poll()
    others.words[4] = chunk.Chunk(9, [], 0, chunk.STILL_RUNNING)
    assert hearing.poll()
    assert (rings.taken, rings.closed[3], rings.closed[4]) == ([1, 2, 4], "died", "finished")


def header(number, outcome):
    return RingHeader(
        process=Process(1, 1), identity=Identity("run", rank=number), capacity=4096, created_at=0.0,
        position=0, sequence=0, last_step=9, last_step_index=9, last_time=0.0, outcome=outcome,
        backward_step_index=0, overhead_ns=0, errors=0, drop_counts=(),
    )  # fmt: skip


def test_an_unknown_end_is_no_reason_for_the_runs():
    """It is noticed first here; what is known of the run's end is told all the same."""
    unknown = LiveRank(None, None, RingCursor(), header(1, "finished"), 5.0, UNKNOWN_OUTCOME, 10.0)
    raised = LiveRank(None, None, RingCursor(), header(0, "exception"), 5.0, "exception", 11.0)

    tick = build_heartbeat("run", [unknown, raised], 12.0)

    assert (tick.attributes["cause"], tick.attributes["failed"]) == ("exception", "0")
    assert (tick.attributes["state"], tick.attributes["died_ranks"]) == ("failed", "")


@pytest.mark.parametrize("outcome", ["exception", "finished"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_run_ends_as_those_ended_that_are_known(outcome, order):
    aligner, ends = Aligner(), {0: outcome, 1: UNKNOWN_OUTCOME}
    told = [Record("run", rank, 0, 1.0, Event.START, {"local_world_size": 2.0}) for rank in (0, 1)]
    told += [Record("run", r, 9, 2.0, Event.STOP, attributes={"outcome": ends[r]}) for r in order]
    made = [record for each in told for record in aligner.process(each)]

    (end,) = [r for r in made if r.event is Event.STOP and r.rank == WHOLE_RUN]
    assert (end.attributes["outcome"], end.attributes["ranks"]) == (outcome, "0")
