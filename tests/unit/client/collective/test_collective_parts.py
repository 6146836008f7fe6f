"""Chunks, the sender that fills them, and the replica rings written from them."""

import os
from contextlib import closing

import pytest
from support.layer_records import rank_sums
from support.recorders import RecordedRank

from sentinel.client.collective import chunk
from sentinel.client.collective.replica_rings import ReplicaRings
from sentinel.client.collective.sender import MAX_BACKLOG_BYTES, CollectiveSender
from sentinel.live.rings import LiveRings
from sentinel.model.counters import Counters
from sentinel.model.record import Event
from sentinel.signals.layer_statistics import LayerSum, sums_from_attributes
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path
from sentinel.transport.record_codec import RecordDecoder, StepStamp
from sentinel.transport.ring import RingCursor, RingReader, RingWriter
from sentinel.transport.ring_layout import DROP_REASONS


def empty_buffer():
    return bytearray(chunk.CHUNK_BYTES)


def test_a_chunk_is_decoded_as_it_was_encoded():
    buffer = empty_buffer()
    payloads = [b"", b"a", bytes(range(256))]
    chunk.encode_into(buffer, 7, payloads, 3, outcome_index=2)

    assert chunk.decode(buffer) == chunk.Chunk(7, payloads, 3, 2)


@pytest.mark.parametrize("at", [0, 4, 12, 20, 21, 40])
def test_a_chunk_with_a_wrong_bit_is_rejected(at):
    buffer = empty_buffer()
    chunk.encode_into(buffer, 7, [b"values" * 9], 0)
    buffer[at] ^= 0x80

    assert chunk.decode(buffer) is None


def test_an_empty_buffer_is_not_a_chunk():
    assert chunk.decode(empty_buffer()) is None


class Pair:
    """A rank on another node with its ring, and its replica ring on rank 0."""

    def __init__(self, folder):
        self.sending = RecordedRank(folder / "0-1.ring")
        self.identity = Identity("run", 0, 1, 0, 2, 1, "host-b")
        self.sender = CollectiveSender(folder / "0-1.ring", self.identity)
        head = Identity("replicated", 4, 0, 0, 2, 1, "host-a")
        self.replica_rings = ReplicaRings(head, lambda *_: None)
        self.chunks = 0
        self.decoder, self.cursor, self.decoded = RecordDecoder("run", 0, 0), RingCursor(), []

    def send_chunk(self):
        buffer = empty_buffer()
        self.chunks += 1
        self.sender.fill_chunk(buffer, self.chunks)
        self.receive(buffer)
        return chunk.decode(buffer)

    def send_final_chunk(self, outcome_index=1):
        buffer = empty_buffer()
        self.sender.fill_final_chunk(buffer, self.chunks, outcome_index)
        self.receive(buffer)
        return chunk.decode(buffer)

    def receive(self, buffer):
        self.replica_rings.enqueue([(1, chunk.decode(buffer))])
        self.replica_rings.write_queued()
        self.read_replica()

    def read_replica(self):
        """The header and the records of the replica ring, read as the agent reads them."""
        reader = RingReader(ring_path("replicated", 4, 1))
        batch = reader.read(self.cursor)
        self.cursor = batch.cursor
        self.decoded += filter(None, map(self.decoder.decode, batch.payloads))
        return reader.read_header(), self.decoded


@pytest.fixture
def pair(tmp_path):
    return Pair(tmp_path)


def test_a_replica_ring_holds_the_records_under_the_identity_of_the_sender(pair):
    pair.sending.recorder.record_event(Event.START, None, {"host": "host-b", "world_size": 2})
    for step in range(5):
        pair.sending.recorder.log({"x": step / 3}, step=step)
    pair.send_chunk()
    pair.sending.recorder.log({"x": 9.0, "y": 1.0}, step=5)
    pair.send_chunk()

    header, records = pair.read_replica()

    assert records == pair.sending.records()
    found = header.identity
    assert (found.run, found.attempt, found.rank, found.host) == ("replicated", 4, 1, "host-b")
    assert (header.last_step, header.last_step_index, header.outcome) == (5, 5, "running")


def test_the_final_chunk_brings_the_stop(pair):
    pair.sending.recorder.log({"x": 1.0}, step=0)
    pair.send_chunk()
    pair.sending.recorder.log({"x": 2.0}, step=1)
    pair.sending.recorder.close({"outcome": "finished"})
    last = pair.send_final_chunk()
    pair.replica_rings.close(1, "finished", {})

    header, records = pair.read_replica()

    assert last.outcome_index == 1
    assert header.outcome == "finished"
    assert records == pair.sending.records()
    assert [record.event for record in records].count(Event.STOP) == 1


def test_a_full_final_chunk_holds_all_events_and_the_newest_values(pair):
    pair.sending.recorder.record_event(Event.METADATA, None, {"about": "the run"})
    for step in range(600):
        pair.sending.recorder.log({f"n{n}": float(step) for n in range(20)}, step=step)
    pair.sending.recorder.close({"outcome": "finished"})
    last = pair.send_final_chunk()

    header, records = pair.read_replica()

    assert [r.event for r in records if r.event is not Event.STEP] == [Event.METADATA, Event.STOP]
    steps = [r.step for r in records if r.event is Event.STEP]
    assert steps == [*range(steps[0], 600)]
    assert len(steps) + last.lost_records == 600
    assert header.drop_counts[DROP_REASONS.index("behind")] == last.lost_records


def record_layers(rank, step):
    """The sums over the most layers that a rank reports."""
    sums = {f"model.layers.{at}.self_attn.q_proj": LayerSum(*[0.1 * at] * 10) for at in range(128)}
    attributes = rank_sums(step, 1, sums, ranks=2).attributes
    rank.recorder.record_layers(StepStamp(step, step, 1e9), attributes)


def test_a_chunk_carries_the_sums_over_all_layers(pair):
    for step in range(3):
        record_layers(pair.sending, step)
        assert pair.send_chunk().lost_records == 0

    _, records = pair.read_replica()

    assert [record.step for record in records if record.event is Event.LAYERS] == [0, 1, 2]
    assert len(sums_from_attributes(records[-1].attributes)) == 128


def test_layers_displace_no_values_from_the_final_chunk(pair):
    for step in range(100):
        pair.sending.recorder.log({f"n{n}": float(step) for n in range(10)}, step=step)
    record_layers(pair.sending, 100)
    pair.sending.recorder.close({"outcome": "finished"})
    last = pair.send_final_chunk()

    _, records = pair.read_replica()

    assert last.lost_records == 1
    assert [record.step for record in records if record.event is Event.STEP] == [*range(100)]


def test_a_rank_that_logs_too_much_loses_values_and_counts_them(pair):
    logged = 0
    for _ in range(80):
        for _ in range(200):
            pair.sending.recorder.log({f"n{n}": 1.0 for n in range(20)}, step=logged)
            logged += 1
        pair.send_chunk()
    behind = pair.sending.reader.read_header().position - pair.sender.cursor.position
    while pair.send_chunk().payloads:
        pass

    header, records = pair.read_replica()
    lost = header.drop_counts[DROP_REASONS.index("behind")]

    assert behind < 4 * MAX_BACKLOG_BYTES
    assert 0 < lost < logged
    assert records[-1].step == logged - 1
    assert chunk.decode(empty_buffer()) is None


def test_a_record_too_large_for_a_chunk_is_dropped_and_counted(pair):
    attributes = {f"name {n}": "x" * 1000 for n in range(40)}
    pair.sending.recorder.record_event(Event.METADATA, None, attributes)
    pair.sending.recorder.log({"x": 1.0}, step=1)
    pair.send_chunk()

    header, records = pair.read_replica()

    assert [record.event for record in records] == [Event.STEP]
    assert header.drop_counts[DROP_REASONS.index("behind")] == 1


def test_schemas_are_repeated_before_a_replica_ring_overruns_them(pair):
    for step in range(6000):
        pair.sending.recorder.log({f"n{n}": float(step) for n in range(20)}, step=step)
        if step % 50 == 0:
            pair.send_chunk()

    reader = RingReader(ring_path("replicated", 4, 1))
    batch = reader.read(RingCursor())

    assert batch.lost_frames
    assert any(payload[:1] == b"N" for payload in batch.payloads)


def test_a_rank_on_the_node_of_rank_0_sends_no_records(tmp_path):
    rank = RecordedRank(tmp_path / "0-1.ring")
    rank.recorder.log({"x": 1.0})
    sender, buffer = (
        CollectiveSender(tmp_path / "0-1.ring", Identity("run"), is_local=True),
        empty_buffer(),
    )
    sender.fill_chunk(buffer, 3)

    assert chunk.decode(buffer) == chunk.Chunk(3, [], 0, chunk.STILL_RUNNING)


def test_payloads_without_a_valid_identity_create_no_ring(tmp_path):
    dropped = []
    replica_rings = ReplicaRings(
        Identity("replicated", 0, 0, 0, 2, 1), lambda *drop: dropped.append(drop)
    )
    for payloads in ([b"V123"], [b"Inonsense"], [b'I{"host": 1}'], [b"I[]"]):
        replica_rings.enqueue([(1, chunk.Chunk(1, payloads, 0, 0))])
        replica_rings.write_queued()

    assert not replica_rings.by_rank
    assert dropped == 4 * [("behind", 1)]


def test_a_forked_child_unmaps_replica_rings_at_once(pair):
    """The child must drop a mapping it does not have before other memory can be mapped there."""
    pair.sending.recorder.log({"x": 1.0}, step=1)
    pair.send_chunk()
    child = os.fork()
    if child == 0:
        pair.replica_rings.abandon()
        unmapped = [replica.ring._map.closed for replica in pair.replica_rings.by_rank.values()]
        os._exit(0 if unmapped == [True] else 1)

    assert os.waitpid(child, 0)[1] == 0
    pair.sending.recorder.log({"x": 2.0}, step=2)
    pair.send_chunk()
    assert len(pair.read_replica()[1]) == 2


def test_replica_rings_are_not_treated_as_processes(tmp_path):
    """Of rank 0's process, only rank 0 can be behind or gone; others are reported as dead."""
    head = Identity("replicated", 4, 0, 0, 3, 1, "host-a")
    ring = RingWriter(ring_path("replicated", 4, 0), head)
    ring.publish_step(20, 20, 1.0)
    pair = Pair(tmp_path)
    pair.sending.recorder.log({"x": 1.0}, step=1)
    pair.send_chunk()
    with closing(LiveRings("replicated", Counters())) as source:
        source.poll()
        while_running = source.heartbeat(2.0)
        pair.replica_rings.close(1, "died", {"collective": "off: rank 1 lost"})
        source.poll()
        after = source.heartbeat(3.0)
        pids = source.pids()

    assert while_running.attributes["straggler_ranks"] == "0"
    assert pids.keys() == {0}
    assert (after.attributes["died_ranks"], after.attributes["cause"]) == ("1", "died")
    assert after.values["ranks_running"] == 1.0
    ring.close("finished")
