"""The parts of the collective: chunks, what goes into them, and the rings made of them."""

import os

import pytest
from support.recorders import Told

from sentinel.client.collective import chunk
from sentinel.client.collective.replica_rings import ReplicaRings
from sentinel.client.collective.sender import MAX_BACKLOG_BYTES, CollectiveSender
from sentinel.live.rings import LiveRings
from sentinel.model.counters import Counters
from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path
from sentinel.transport.record_codec import RecordDecoder
from sentinel.transport.ring import RingCursor, RingReader, RingWriter
from sentinel.transport.ring_layout import DROP_REASONS


def memory():
    return bytearray(chunk.CHUNK_BYTES)


def test_a_chunk_comes_back_as_it_was_put_in():
    there = memory()
    payloads = [b"", b"a", bytes(range(256))]
    chunk.encode_into(there, 7, payloads, 3, outcome_index=2)

    assert chunk.decode(there) == chunk.Chunk(7, payloads, 3, 2)


@pytest.mark.parametrize("at", [0, 4, 12, 20, 21, 40])
def test_a_chunk_of_which_one_bit_is_wrong_is_none(at):
    there = memory()
    chunk.encode_into(there, 7, [b"values" * 9], 0)
    there[at] ^= 0x80

    assert chunk.decode(there) is None


def test_memory_that_nothing_came_into_is_no_chunk():
    assert chunk.decode(memory()) is None


class Pair:
    """A rank of another node with its ring, and what rank 0 makes of it."""

    def __init__(self, folder):
        self.told = Told(folder / "0-1.ring")
        self.who = Identity("run", 0, 1, 0, 2, 1, "host-b")
        self.outgoing = CollectiveSender(folder / "0-1.ring", self.who)
        ours = Identity("mirrored", 4, 0, 0, 2, 1, "host-a")
        self.mirrors = ReplicaRings(ours, lambda *_: None)
        self.chunks = 0
        self.unpacker, self.cursor, self.read = RecordDecoder("run", 0, 0), RingCursor(), []

    def hand_over(self):
        there = memory()
        self.chunks += 1
        self.outgoing.fill_chunk(there, self.chunks)
        self.take(there)
        return chunk.decode(there)

    def leave(self, ending=1):
        there = memory()
        self.outgoing.fill_final_chunk(there, self.chunks, ending)
        self.take(there)
        return chunk.decode(there)

    def take(self, there):
        self.mirrors.enqueue([(1, chunk.decode(there))])
        self.mirrors.write_queued()
        self.mirrored()

    def mirrored(self):
        """The mirror's header, and its records, as the agent reads them: at once."""
        reader = RingReader(ring_path("mirrored", 4, 1))
        batch = reader.read(self.cursor)
        self.cursor = batch.cursor
        self.read += filter(None, map(self.unpacker.decode, batch.payloads))
        return reader.read_header(), self.read


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path)


def test_a_mirror_holds_what_the_ring_holds_under_the_name_of_that_rank(pair):
    pair.told.recorder.record_event(Event.START, None, {"host": "host-b", "world_size": 2})
    for step in range(5):
        pair.told.recorder.log({"x": step / 3}, step=step)
    pair.hand_over()
    pair.told.recorder.log({"x": 9.0, "y": 1.0}, step=5)
    pair.hand_over()

    header, records = pair.mirrored()

    assert records == pair.told.records()
    who = header.identity
    assert (who.run, who.attempt, who.rank, who.host) == ("mirrored", 4, 1, "host-b")
    assert (header.last_step, header.last_step_index, header.outcome) == (5, 5, "running")


def test_the_last_chunk_brings_the_end(pair):
    pair.told.recorder.log({"x": 1.0}, step=0)
    pair.hand_over()
    pair.told.recorder.log({"x": 2.0}, step=1)
    pair.told.recorder.close({"outcome": "finished"})
    last = pair.send_final_chunk()
    pair.replica_rings.close(1, "finished", {})

    header, records = pair.mirrored()

    assert last.outcome_index == 1
    assert header.outcome == "finished"
    assert records == pair.told.records()
    assert [record.event for record in records].count(Event.STOP) == 1


def test_of_too_much_the_last_chunk_brings_the_newest_and_all_that_is_no_number(pair):
    pair.told.recorder.record_event(Event.METADATA, None, {"about": "the run"})
    for step in range(600):
        pair.told.recorder.log({f"n{n}": float(step) for n in range(20)}, step=step)
    pair.told.recorder.close({"outcome": "finished"})
    last = pair.send_final_chunk()

    header, records = pair.mirrored()

    assert [r.event for r in records if r.event is not Event.STEP] == [Event.METADATA, Event.STOP]
    steps = [r.step for r in records if r.event is Event.STEP]
    assert steps == [*range(steps[0], 600)]
    assert len(steps) + last.lost == 600
    assert header.drop_counts[DROP_REASONS.index("behind")] == last.lost


def test_a_rank_that_logs_more_than_chunks_carry_loses_numbers_and_they_are_counted(pair):
    told = 0
    for _ in range(80):
        for _ in range(200):
            pair.told.recorder.log({f"n{n}": 1.0 for n in range(20)}, step=told)
            told += 1
        pair.hand_over()
    behind = pair.told.reader.read_header().position - pair.outgoing.cursor.position
    while pair.hand_over().payloads:
        pass

    header, records = pair.mirrored()
    lost = header.drop_counts[DROP_REASONS.index("behind")]

    assert behind < 4 * MAX_BACKLOG_BYTES
    assert 0 < lost < told
    assert records[-1].step == told - 1
    assert chunk.decode(memory()) is None


def test_a_record_too_large_for_a_chunk_is_counted_and_holds_nothing_up(pair):
    facts = {f"fact {n}": "x" * 1000 for n in range(40)}
    pair.told.recorder.record_event(Event.METADATA, None, facts)
    pair.told.recorder.log({"x": 1.0}, step=1)
    pair.hand_over()

    header, records = pair.mirrored()

    assert [record.event for record in records] == [Event.STEP]
    assert header.drop_counts[DROP_REASONS.index("behind")] == 1


def test_names_are_written_again_before_a_mirror_overruns_them(pair):
    for step in range(6000):
        pair.told.recorder.log({f"n{n}": float(step) for n in range(20)}, step=step)
        if step % 50 == 0:
            pair.hand_over()

    reader = RingReader(ring_path("mirrored", 4, 1))
    batch = reader.read(RingCursor())

    assert batch.lost_frames
    assert any(payload[:1] == b"N" for payload in batch.payloads)


def test_a_rank_beside_rank_0_hands_over_nothing(tmp_path):
    told = Told(tmp_path / "0-1.ring")
    told.recorder.log({"x": 1.0})
    outgoing, there = (
        CollectiveSender(tmp_path / "0-1.ring", Identity("run"), is_local=True),
        memory(),
    )
    outgoing.fill_chunk(there, 3)

    assert chunk.decode(there) == chunk.Chunk(3, [], 0, chunk.STILL_RUNNING)


def test_what_is_no_rank_makes_no_ring(tmp_path):
    dropped = []
    mirrors = ReplicaRings(Identity("mirrored", 0, 0, 0, 2, 1), lambda *what: dropped.append(what))
    for payloads in ([b"V123"], [b"Inonsense"], [b'I{"host": 1}'], [b"I[]"]):
        mirrors.enqueue([(1, chunk.Chunk(1, payloads, 0, 0))])
        mirrors.write_queued()

    assert not mirrors.by_rank
    assert dropped == 4 * [("behind", 1)]


def test_a_forked_child_lets_go_of_mirrors_at_once(pair):
    """A mapping that the child never had must be let go of before anything can be put there."""
    pair.told.recorder.log({"x": 1.0}, step=1)
    pair.hand_over()
    child = os.fork()
    if child == 0:
        pair.replica_rings.abandon()
        unmapped = [mirror.ring._map.closed for mirror in pair.replica_rings.by_rank.values()]
        os._exit(0 if unmapped == [True] else 1)

    assert os.waitpid(child, 0)[1] == 0
    pair.told.recorder.log({"x": 2.0}, step=2)
    pair.hand_over()
    assert len(pair.mirrored()[1]) == 2


def test_mirrors_are_not_taken_for_processes_of_their_own(tmp_path):
    """Of rank 0's process only rank 0 can be behind, or gone; another may be told of as dead."""
    ours = Identity("mirrored", 4, 0, 0, 3, 1, "host-a")
    ring = RingWriter(ring_path("mirrored", 4, 0), ours)
    ring.publish_step(20, 20, 1.0)
    pair = Pair(tmp_path)
    pair.told.recorder.log({"x": 1.0}, step=1)
    pair.hand_over()
    source = LiveRings("mirrored", Counters())
    source.poll()
    while_running = source.heartbeat(2.0)
    pair.mirrors.close(1, "died", {"collective": "off: rank 1 lost"})
    source.poll()
    after = source.heartbeat(3.0)

    assert while_running.attributes["behind"] == "0"
    assert source.pids().keys() == {0}
    assert (after.attributes["died_ranks"], after.attributes["cause"]) == ("1", "died")
    assert after.values["ranks_running"] == 1.0
    ring.close("finished")
