"""Rings with many unread records are read in slices, always the rank that is behind next."""

from __future__ import annotations

import os

import pytest

from sentinel.aggregate.aligner import Aligner
from sentinel.live.rings import MAX_FRAMES_PER_READ, LiveRings
from sentinel.model.counters import Counters
from sentinel.model.record import WHOLE_RUN, Event
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path
from sentinel.transport.record_codec import RecordEncoder, StepStamp, names_interval
from sentinel.transport.ring import RingWriter

RUN, NOW = "behind", 1_800_000_000.0
SLICE = 100
FRAME_BYTES = 56
"""Of a record with one value."""


class Rank:
    """Writes the ring of a rank in this process."""

    def __init__(self, number, world, attempt=0, capacity=1 << 20):
        identity = Identity(RUN, attempt, number, number, world, world)
        self.ring = RingWriter(ring_path(RUN, attempt, number), identity, capacity)
        self.encoder = RecordEncoder(self.ring.write, resend_after_bytes=names_interval(capacity))
        start = {"world_size": float(world), "local_world_size": float(world)}
        self.encoder.write_event(Event.START, StepStamp(0, 0, NOW), start)

    def write(self, steps, *names):
        schema = self.encoder.schema_for(names or ("loss",))
        for step in steps:
            values = [float(step)] * len(names or ("loss",))
            self.encoder.write_values(schema, StepStamp(step, step, NOW), values)
            self.ring.publish_step(step, step, NOW)

    def stop(self, outcome="finished"):
        stamp = StepStamp(self.ring.step, self.ring.step_index, NOW)
        self.encoder.write_event(Event.STOP, stamp, attributes={"outcome": outcome})
        self.ring.close(outcome)


@pytest.fixture
def source():
    opened = LiveRings(RUN, Counters(), clock=lambda: NOW)
    yield opened
    opened.close()


class Reader:
    """Polls slices and combines them; each poll takes `seconds_per_poll` of the clock."""

    def __init__(self, source, seconds_per_poll=60.0, combine=True):
        self.source, self.seconds_per_poll = source, seconds_per_poll
        self.aligner = Aligner(source.counters) if combine else None
        self.slices, self.steps, self.heartbeats = [], [], []

    def poll(self):
        now = self.source.clock() + self.seconds_per_poll
        self.source.clock = lambda: now
        records = self.source.poll(SLICE)
        self.slices.append([r for r in records if r.event is not Event.HEARTBEAT])
        self.heartbeats += [r for r in records if r.event is Event.HEARTBEAT]
        if self.aligner is not None:
            combined = (made for record in records for made in self.aligner.process(record))
            self.steps += [r for r in combined if r.rank == WHOLE_RUN and r.event is Event.STEP]
        return records

    def poll_all(self):
        self.poll()
        while self.source.has_unread:
            self.poll()

    def dropped(self):
        name = "sentinel_dropped_records_total"
        return {key[1]: n for key, n in self.source.counters.values.items() if key[0] == name and n}


def numbers(records):
    return [record.step for record in records]


def test_a_slice_is_bounded_and_no_rank_is_far_ahead(source):
    ranks = [Rank(n, 3) for n in range(3)]
    for rank in ranks:
        rank.write(range(1, 1001))
    reader = Reader(source)
    reader.poll_all()

    assert max(map(len, reader.slices)) <= SLICE + MAX_FRAMES_PER_READ
    newest = {0: 0, 1: 0, 2: 0}
    for record in (each for part in reader.slices for each in part):
        newest[record.rank] = max(newest[record.rank], record.step_index)
        assert max(newest.values()) - min(newest.values()) <= 2 * MAX_FRAMES_PER_READ


@pytest.mark.fault("A3")
def test_nothing_is_late_although_a_slice_takes_longer_than_the_deadline(source):
    """As for an agent that is suspended in the middle of a slice."""
    ranks = [Rank(n, 8) for n in range(8)]
    for n, rank in enumerate(ranks):
        rank.write(range(1, 301), "loss", f"only_{n}")
    reader = Reader(source)
    reader.poll_all()
    reader.poll()
    reader.poll()

    assert numbers(reader.steps) == list(range(1, 301))
    assert reader.dropped() == {}
    assert all(len(step.values) == 9 and "missing" not in step.attributes for step in reader.steps)


def test_a_heartbeat_names_the_ranks_with_unread_records(source):
    first, second = Rank(0, 2), Rank(1, 2)
    first.write(range(1, 50))
    second.write(range(1, 500))
    reader = Reader(source, combine=False)
    reader.poll_all()

    unread = [heartbeat.attributes.get("unread_ranks", "") for heartbeat in reader.heartbeats]
    assert (unread[0], unread[-1]) == ("1", "")


def test_a_rank_that_writes_nothing_holds_up_no_other(source):
    Rank(0, 2).write(range(1, 501))
    Rank(1, 2)
    reader = Reader(source)
    reader.poll_all()
    reader.poll()

    assert numbers(reader.steps) == list(range(1, 501))


def test_a_rank_that_died_early_holds_up_no_other(source):
    first, second = Rank(0, 2), Rank(1, 2)
    first.write(range(1, 501))
    second.write(range(1, 101))
    second.stop("exception")
    reader = Reader(source, seconds_per_poll=0.01)
    reader.poll_all()

    assert numbers(reader.steps)[:490] == list(range(1, 491))
    assert reader.dropped() == {}


def test_an_older_attempt_is_read_before_a_newer_one(source):
    for attempt in (0, 1):
        for n in range(2):
            rank = Rank(n, 2, attempt)
            rank.write(range(1, 201))
            rank.stop()
    reader = Reader(source)
    reader.poll_all()

    attempts = [record.attempt for part in reader.slices for record in part]
    assert attempts == sorted(attempts)
    assert numbers(reader.steps) == 2 * [*range(1, 201)]
    assert reader.dropped() == {}


def test_a_death_is_known_before_its_last_records_are_read(source):
    """A STOP follows once they are read: the run is not over before."""
    read, write = os.pipe()
    pid = os.fork()
    if pid == 0:
        Rank(0, 2).write(range(1, 1001))
        os.write(write, b"x")
        os.read(read, 1)
        os._exit(1)
    os.close(write)
    os.read(read, 1)
    os.close(read)
    Rank(1, 2).write(range(1, 1001))
    os.kill(pid, 9)
    os.waitpid(pid, 0)
    reader = Reader(source)
    reader.poll()

    (heartbeat,) = reader.heartbeats
    attributes = heartbeat.attributes
    assert (attributes["died_ranks"], attributes["state"]) == ("0", "running")
    assert not any(record.event is Event.STOP for record in reader.slices[0])
    assert source.positions()[str(ring_path(RUN, 0, 0))].outcome == ""
    reader.poll_all()
    records = [record for part in reader.slices for record in part if record.rank == 0]
    assert numbers(records[1:-1]) == list(range(1, 1001))
    assert records[-1].event is Event.STOP
    assert reader.dropped() == {}


@pytest.mark.fault("A2")
def test_what_an_overrun_left_is_read_whole(source):
    """The reader goes on close to the writer, in every ring at about the same step."""
    ranks = [Rank(n, 2, capacity=64 << 10) for n in range(2)]
    for step in range(1, 5001):
        for rank in ranks:
            rank.write([step])
    reader = Reader(source)
    reader.poll_all()
    reader.poll()

    assert set(reader.dropped()) == {"overrun"}
    assert len(reader.steps) >= 0.85 * (64 << 10) / FRAME_BYTES
    assert numbers(reader.steps) == list(range(5001 - len(reader.steps), 5001))
    for n in range(2):
        first, *rest = [record for part in reader.slices for record in part if record.rank == n]
        assert (first.event, first.values["world_size"]) == (Event.START, 2.0)
        assert numbers(rest) == list(range(5001 - len(rest), 5001))


def test_ranks_that_are_far_ahead_are_not_read_further(source):
    first, second = Rank(0, 2), Rank(1, 2)
    first.write(range(1, 301))
    second.write(range(1, 101))

    source.poll(max_step_index=150)
    assert source.has_unread
    ahead, behind = (rank.read_step_index for rank in source.ranks.values())
    assert (150 <= ahead < 150 + MAX_FRAMES_PER_READ, behind) == (True, 100)


@pytest.mark.parametrize("steps", range(28, 34))
def test_nothing_is_unread_after_the_last_record_of_a_rank(source, steps):
    """Wherever a slice ends."""
    rank = Rank(0, 1)
    rank.write(range(1, steps + 1))
    rank.stop()
    records = []
    for _ in range(3):
        records += source.poll(MAX_FRAMES_PER_READ - 1)

    assert [r.event for r in records].count(Event.STOP) == 1
    assert (source.has_unread, source.ended) == (False, True)
