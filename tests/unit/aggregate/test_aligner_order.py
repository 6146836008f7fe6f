"""Steps close as a plain check of all ranks at each record closes them, at a cost per rank."""

from __future__ import annotations

import sys
from dataclasses import dataclass, field
from random import Random

import pytest

from sentinel.aggregate.aligner import Aligner
from sentinel.model.record import WHOLE_RUN, Event, Record

SETTLE_SECONDS, DEADLINE_SECONDS = 0.5, 10.0
STARTED_AT = 1.0


@dataclass
class PlainAligner:
    """Which steps close at each record, of STEP records of one attempt whose ranks all started.

    Everything is computed again from all that was reported; `closed` is (step index, missing).
    """

    ranks: int
    now: float = STARTED_AT
    newest: dict[int, int] = field(default_factory=dict)
    stopped: set[int] = field(default_factory=set)
    lost: set[int] = field(default_factory=set)
    unread: set[int] = field(default_factory=set)
    received: dict[int, list[tuple[float, int]]] = field(default_factory=dict)
    """Time and rank of each record of a step that is not closed, by step index."""
    last_step_at: float = 0.0
    step_seconds: float = 0.0
    closed: list[tuple[int, str]] = field(default_factory=list)

    def heartbeat(self, time, lost, unread):
        self.now, self.lost, self.unread = time, lost, unread
        self.close()

    def stop(self, rank):
        self.lost.discard(rank)
        self.stopped.add(rank)
        self.close()

    def step(self, rank, step_index):
        self.lost.discard(rank)
        self.newest[rank] = max(step_index, self.newest.get(rank, -1))
        self.received.setdefault(step_index, []).append((self.now, rank))
        self.close()

    def close(self):
        for step_index in sorted(self.received):
            if not self.is_complete(step_index):
                return
            times, reported = zip(*self.received.pop(step_index), strict=True)
            expected = ({*self.newest} | self.lost) - self.stopped
            missing = ",".join(map(str, sorted(expected.difference(reported))))
            self.closed.append((step_index, missing))
            previous, self.last_step_at = self.last_step_at, times[0]
            self.step_seconds = self.last_step_at - previous if previous else 0.0

    def is_complete(self, step_index):
        times, reported = zip(*self.received[step_index], strict=True)
        behind = {r for r in range(self.ranks) if self.newest.get(r, -1) <= step_index}
        behind -= self.stopped
        if behind & self.unread:
            return False
        if self.now - times[0] >= max(DEADLINE_SECONDS, 2 * self.step_seconds):
            return True
        awaited = behind - self.lost
        # A rank that never reported leaves that to the others after the time to start.
        if self.now - STARTED_AT >= DEADLINE_SECONDS and self.unread <= {*range(self.ranks)}:
            awaited &= self.newest.keys()
        is_settled = self.now - times[-1] >= SETTLE_SECONDS
        return not (awaited.difference(reported) if is_settled else awaited)


def start(rank, ranks):
    return Record("run", rank, 0, 0.0, Event.START, {"local_world_size": float(ranks)})


def step(rank, step_index, **values):
    values = {"loss": 1.0, **values}
    return Record("run", rank, step_index, 1.0, values=values, step_index=step_index)


def heartbeat(time, lost=(), unread=()):
    ranks = {"lost_ranks": lost, "unread_ranks": unread}
    attributes = {name: ",".join(map(str, sorted(each))) for name, each in ranks.items() if each}
    return Record("run", WHOLE_RUN, 0, time, Event.HEARTBEAT, {"ranks_running": 1.0}, attributes)


def started(ranks):
    aligner = Aligner(deadline_seconds=DEADLINE_SECONDS, settle_seconds=SETTLE_SECONDS)
    for record in (heartbeat(STARTED_AT), *(start(rank, ranks) for rank in range(ranks))):
        list(aligner.process(record))
    return aligner


@pytest.mark.parametrize("seed", range(60))
def test_steps_close_as_if_all_ranks_were_checked_at_each_record(seed):
    """Ranks of any pace, that stop, are lost, or have unread records."""
    random = Random(seed)
    ranks = random.randint(1, 6)
    plain, aligner = PlainAligner(ranks), started(ranks)
    # Some ranks never report.
    pace = [random.choice([0.0, 0.2, 1.0, 1.0]) for _ in range(ranks)]
    indices, closed, now = [0] * ranks, list[tuple[int, str]](), STARTED_AT

    for _ in range(250):
        rank = random.randrange(ranks)
        if random.random() < 0.2:
            now += random.choice([0.125, 0.25, 0.5, 0.5, 4.0])
            lost = {rank for rank in range(ranks) if random.random() < 0.08}
            unread = {rank for rank in range(ranks) if random.random() < 0.08}
            plain.heartbeat(now, {*lost}, {*unread})
            record = heartbeat(now, lost, unread)
        elif random.random() < 0.004:
            plain.stop(rank)
            record = Record("run", rank, 0, now, Event.STOP, attributes={"outcome": "died"})
        elif random.random() < pace[rank] and rank not in plain.stopped:
            indices[rank] += random.random() < 0.9
            if indices[rank] <= max([-1, *(index for index, _ in closed)]):
                continue
            plain.step(rank, indices[rank])
            record = step(rank, indices[rank])
        else:
            continue
        if plain.stopped and {*range(ranks)} <= plain.stopped | plain.lost:
            # The run has stopped, which closes all steps.
            break
        closed += [
            (made.step_index, made.attributes.get("missing", ""))
            for made in aligner.process(record)
            if made.rank == WHOLE_RUN and made.event is Event.STEP
        ]
        assert closed == plain.closed
    assert closed or plain.stopped or not any(pace)


def calls_per_rank_and_step(ranks, step_seconds, steps=12, **values):
    """Function calls of aligning a step of each rank, with two heartbeats a second."""
    aligner = started(ranks)
    calls, next_heartbeat = 0, STARTED_AT + 0.5

    def count(_frame, event, _argument):
        nonlocal calls
        calls += event in {"call", "c_call"}

    for step_index in range(1, steps + 1):
        records = [step(rank, step_index, **values) for rank in range(ranks)]
        while next_heartbeat <= STARTED_AT + step_index * step_seconds:
            records.append(heartbeat(next_heartbeat))
            next_heartbeat += 0.5
        sys.setprofile(count)
        try:
            for record in records:
                for _ in aligner.process(record):
                    pass
        finally:
            sys.setprofile(None)
    return calls / (ranks * steps)


@pytest.mark.parametrize("values", [{}, {"weight": 2.0}])
def test_the_cost_per_rank_and_step_depends_neither_on_ranks_nor_on_pace(values):
    costs = [
        calls_per_rank_and_step(ranks, step_seconds, **values)
        for ranks in (32, 256)
        for step_seconds in (1.0, 0.1)
    ]

    assert max(costs) < 1.25 * min(costs)
