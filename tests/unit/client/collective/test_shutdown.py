"""How the replica rings are closed, by what rank 0 knows of each rank."""

from __future__ import annotations

import pytest

from sentinel.aggregate.aligner import Aligner
from sentinel.client.collective import chunk, shutdown
from sentinel.client.collective.gather_group import GatherGroupError
from sentinel.client.collective.shutdown import CollectiveShutdown
from sentinel.live.liveness import build_heartbeat
from sentinel.live.rank import LiveRank
from sentinel.model.record import UNKNOWN_OUTCOME, WHOLE_RUN, Event, Record
from sentinel.transport.identity import Identity
from sentinel.transport.process import Process
from sentinel.transport.ring import RingCursor
from sentinel.transport.ring_layout import OUTCOMES, RingHeader


class FakeGroup:
    """Four other ranks: one raised, one continues alone, one is gone, one has not answered."""

    world_size = 5

    def __init__(self):
        self.chunks = {
            1: chunk.Chunk(9, [], 0, OUTCOMES.index("exception")),
            2: chunk.Chunk(9, [], 0, chunk.STILL_RUNNING),
        }
        self.lost = {3}

    def final_chunks(self):
        return self.chunks

    def lost_ranks(self, ranks):
        return [rank for rank in ranks if rank in self.lost]

    def dismiss_peers(self):
        pass


class FakeRings:
    """The replica rings, and how each was closed."""

    def __init__(self):
        self.by_rank = dict.fromkeys(range(1, 5))
        self.closed, self.attributes, self.enqueued = {}, {}, []

    def enqueue(self, chunks):
        self.enqueued += [rank for rank, _ in chunks]

    def write_queued(self):
        pass

    def close(self, rank, outcome, attributes):
        assert rank not in self.closed
        self.closed[rank], self.attributes[rank] = outcome, dict(attributes)
        del self.by_rank[rank]


@pytest.mark.parametrize(
    "error", [None, GatherGroupError("a connection is closed")], ids=["ends", "breaks"]
)
def test_a_rank_that_did_not_answer_is_not_closed_as_finished(error):
    rings, reasons = FakeRings(), []
    CollectiveShutdown(FakeGroup(), rings, reasons.append, error).close()

    assert rings.closed == {1: "exception", 2: "finished", 3: "died", 4: UNKNOWN_OUTCOME}
    assert reasons == ["rank 3 lost"]
    off = {"collective": "off: rank 3 lost"}
    assert rings.attributes == {1: {}, 2: off, 3: off, 4: off}


def test_a_rank_that_continues_alone_is_marked_off_when_rank_0_ends_normally():
    rings, group = FakeRings(), FakeGroup()
    group.lost = set()
    CollectiveShutdown(group, rings, [].append, None).close()

    assert rings.closed == {1: "exception", 2: "finished", 3: UNKNOWN_OUTCOME, 4: UNKNOWN_OUTCOME}
    assert rings.attributes == {1: {}, 2: {"collective": "off: rank 0 ended"}, 3: {}, 4: {}}


def test_final_chunks_are_written_as_they_arrive_and_once(monkeypatch):
    """The agent of its own node reports the same records soon after."""
    monkeypatch.setattr(shutdown, "ANSWER_TIMEOUT_SECONDS", 1e9)
    rings, group = FakeRings(), FakeGroup()
    closing = CollectiveShutdown(group, rings, [].append, ValueError("timed out"))

    assert not closing.poll()
    assert (rings.enqueued, rings.closed) == ([1, 2], {1: "exception", 2: "finished"})
    assert not closing.poll()
    group.chunks[4] = chunk.Chunk(9, [], 0, chunk.STILL_RUNNING)
    assert closing.poll()
    assert (rings.enqueued, rings.closed[3], rings.closed[4]) == ([1, 2, 4], "died", "finished")


def header(number, outcome):
    return RingHeader(
        process=Process(1, 1), identity=Identity("run", rank=number), capacity=4096, created_at=0.0,
        position=0, sequence=0, last_step=9, last_step_index=9, last_time=0.0, outcome=outcome,
        backward_step_index=0, overhead_ns=0, errors=0, drop_counts=(),
    )  # fmt: skip


def test_an_unknown_outcome_is_not_the_cause_of_the_end_of_the_run():
    """The unknown outcome is seen first; the known cause is reported all the same."""
    unknown = LiveRank(None, None, RingCursor(), header(1, "finished"), 5.0, UNKNOWN_OUTCOME, 10.0)
    raised = LiveRank(None, None, RingCursor(), header(0, "exception"), 5.0, "exception", 11.0)

    heartbeat = build_heartbeat("run", [unknown, raised], 12.0)

    assert (heartbeat.attributes["cause"], heartbeat.attributes["failed_ranks"]) == (
        "exception",
        "0",
    )
    assert (heartbeat.attributes["state"], heartbeat.attributes["died_ranks"]) == ("failed", "")


@pytest.mark.parametrize("outcome", ["exception", "finished"])
@pytest.mark.parametrize("order", [(0, 1), (1, 0)])
def test_the_run_ends_with_the_known_outcomes(outcome, order):
    aligner, ends = Aligner(), {0: outcome, 1: UNKNOWN_OUTCOME}
    records = [
        Record("run", rank, 0, 1.0, Event.START, {"local_world_size": 2.0}) for rank in (0, 1)
    ]
    records += [
        Record("run", r, 9, 2.0, Event.STOP, attributes={"outcome": ends[r]}) for r in order
    ]
    aligned = [record for each in records for record in aligner.process(each)]

    (end,) = [r for r in aligned if r.event is Event.STOP and r.rank == WHOLE_RUN]
    assert (end.attributes["outcome"], end.attributes["ranks"]) == (outcome, "0")
