"""Rings count every lost frame and never return bytes that were not written."""

import os
import random
import signal
import struct
import threading
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import settings as budget
from hypothesis import strategies as st
from support.ring_writers import WRITER_IDENTITY, killed_writer, write_until_killed

from sentinel.transport import ring_layout
from sentinel.transport.process import Process
from sentinel.transport.ring import (
    DROP_REASONS,
    RingCursor,
    RingError,
    RingReader,
    RingWriter,
    fitting_capacity,
)
from sentinel.transport.ring_layout import WORD_POSITION

KILLS = int(os.environ.get("CHAOS_KILLS", "12"))
"""Writers that are killed; `make soak` kills 120."""
SMALL = 64 << 10


@pytest.fixture
def ring(tmp_path):
    writer = RingWriter(tmp_path / "a.ring", WRITER_IDENTITY, SMALL)
    yield writer
    writer.close("finished")


@pytest.fixture
def reader(ring):
    reader = RingReader(ring.path, grace_seconds=0.0)
    yield reader
    reader.close()


def test_payloads_are_read_in_order(ring, reader):
    for written in (b"one", b"", b"three"):
        ring.write(written)

    batch = reader.read(RingCursor())

    assert batch.payloads == [b"one", b"", b"three"]
    assert (batch.lost_frames, batch.corrupt_frames) == (0, 0)
    assert reader.read(batch.cursor).payloads == []


def test_the_header_holds_the_writer_and_its_progress(ring, reader):
    ring.publish_step(step=500, step_index=7, now=12.5)
    ring.count_drop("shape", 3)
    ring.count_error()
    ring.overhead_seconds = 1e-6
    ring.write(b"x")

    header = reader.read_header()

    assert header.identity == WRITER_IDENTITY
    assert header.process == Process.current()
    assert (header.last_step, header.last_step_index, header.last_time) == (500, 7, 12.5)
    assert (header.sequence, header.errors, header.overhead_ns) == (1, 1, 1000)
    assert dict(zip(DROP_REASONS, header.drop_counts, strict=True))["shape"] == 3
    assert header.outcome == "running"


def test_the_outcome_outlives_the_writer(tmp_path):
    RingWriter(tmp_path / "b.ring", WRITER_IDENTITY, SMALL).close("exception")

    assert RingReader(tmp_path / "b.ring").read_header().outcome == "exception"


@given(st.lists(st.binary(max_size=2000), min_size=1, max_size=400), st.integers(1, 50))
@budget(max_examples=budget.default.max_examples // 3)
def test_every_frame_is_read_or_counted_as_lost(tmp_path_factory, payloads, every):
    """For all sizes and read intervals, including wraps and overruns."""
    path = tmp_path_factory.mktemp("ring") / "r.ring"
    writer, cursor, received, lost = RingWriter(path, WRITER_IDENTITY, SMALL), RingCursor(), [], 0
    reader = RingReader(path)
    for number, payload in enumerate(payloads, start=1):
        writer.write(struct.pack("I", number) + payload)
        if number % every == 0 or number == len(payloads):
            batch = reader.read(cursor)
            cursor, lost = batch.cursor, lost + batch.lost_frames
            assert batch.corrupt_frames == 0
            received.extend(batch.payloads)
    numbers = [struct.unpack_from("I", payload)[0] for payload in received]

    assert len(received) + lost == len(payloads)
    assert numbers == sorted(set(numbers))
    assert all(payload[4:] == payloads[n - 1] for n, payload in zip(numbers, received, strict=True))
    reader.close()
    writer.close("finished")


def test_an_overrun_reader_continues_with_most_remaining_frames(ring, reader):
    for number in range(10_000):
        ring.write(b"%08d" % number * 10)

    batch = reader.read(RingCursor())

    assert batch.lost_frames + len(batch.payloads) == 10_000
    assert len(batch.payloads) > SMALL / 2 / 104
    assert batch.payloads[-1].startswith(b"00009999")


@pytest.mark.fault("S6")
def test_a_damaged_frame_is_counted_once_and_the_next_is_read(ring, reader):
    for written in (b"first", b"second", b"third"):
        ring.write(written)
    _damage(ring.path, ring_layout.HEADER_SIZE + 24 + ring_layout.FRAME_HEADER.size)

    first = reader.read(RingCursor())

    assert first.payloads == [b"first", b"third"]
    assert first.corrupt_frames == 1


def test_an_invalid_frame_has_a_grace_period(ring):
    """On some machines the position becomes visible before the frame."""
    reader = RingReader(ring.path, grace_seconds=60.0)
    ring.write(b"late")
    ring.write(b"later")
    offset = ring_layout.HEADER_SIZE + ring_layout.FRAME_HEADER.size
    before = _damage(ring.path, offset)

    assert reader.read(RingCursor()).payloads == []
    _damage(ring.path, offset, before)
    assert reader.read(RingCursor()).payloads == [b"late", b"later"]
    reader.close()


def test_bytes_after_the_published_position_are_ignored(ring, reader):
    """A killed writer leaves bytes after the position that it published last."""
    ring.write(b"whole")
    _damage(ring.path, ring_layout.HEADER_SIZE + 24, b"\xff" * 40)

    assert reader.read(RingCursor()).payloads == [b"whole"]
    assert reader.read(RingCursor(24, 1)).corrupt_frames == 0


@given(st.binary(min_size=1, max_size=4000), st.integers(0, SMALL - 4000))
def test_garbage_is_never_read_as_a_record(tmp_path_factory, garbage, at):
    path = tmp_path_factory.mktemp("ring") / "r.ring"
    writer = RingWriter(path, WRITER_IDENTITY, SMALL)
    written_payloads = [b"payload %d" % n for n in range(900)]
    for written in written_payloads:
        writer.write(written)
    _damage(path, ring_layout.HEADER_SIZE + at, garbage)

    reader = RingReader(path, grace_seconds=0.0)
    batch = reader.read(RingCursor())

    assert set(batch.payloads) <= set(written_payloads)
    assert len(batch.payloads) + batch.lost_frames + batch.corrupt_frames <= len(written_payloads)
    reader.close()
    writer.close("finished")


@pytest.mark.parametrize(
    ("content", "complaint"),
    [
        (b"", "truncated"),
        (b"x" * 8192, "not a ring"),
        (ring_layout.RING_MAGIC + bytes(8184), "layout 0"),
    ],
)
def test_a_file_that_is_not_a_ring_is_refused_by_name(tmp_path, content, complaint):
    path = tmp_path / "odd.ring"
    path.write_bytes(content)

    with pytest.raises(RingError, match=f"odd.ring.*{complaint}"):
        RingReader(path)


@pytest.mark.fault("S6")
def test_a_truncated_ring_is_refused(ring):
    cut = ring.path.with_name("cut.ring")
    cut.write_bytes(ring.path.read_bytes()[:10_000])

    with pytest.raises(RingError, match="truncated"):
        RingReader(cut)


def test_an_existing_ring_is_not_replaced(ring):
    with pytest.raises(FileExistsError):
        RingWriter(ring.path, WRITER_IDENTITY, SMALL)
    assert [path.name for path in ring.path.parent.iterdir()] == ["a.ring"]


def test_only_the_owner_may_read_a_ring(ring):
    assert ring.path.stat().st_mode & 0o777 == 0o600


def test_a_payload_that_is_too_large_is_dropped_and_counted(ring, reader):
    ring.write(b"x" * (ring.max_payload_bytes + 1))

    assert reader.read(RingCursor()).payloads == []
    assert sum(reader.read_header().drop_counts) == 1


@pytest.mark.fault("S3")
def test_the_capacity_fits_the_directory(tmp_path, monkeypatch):
    assert fitting_capacity(tmp_path, max_capacity=1 << 20) == 1 << 20
    space = os.statvfs(tmp_path)
    full = os.statvfs_result((4096, 4096, 100, 100, 60, *list(space)[5:10]))
    monkeypatch.setattr(os, "statvfs", lambda _: full)
    assert fitting_capacity(tmp_path) == 29 * 4096
    assert fitting_capacity(tmp_path, ring_count=8) == 0


@pytest.mark.fault("P1")
@pytest.mark.chaos
def test_every_acknowledged_record_survives_a_kill(tmp_path):
    """The writer is killed at a random time; every acknowledged record is complete."""
    random.seed(7)
    for number in range(KILLS):
        assert killed_writer(tmp_path / f"{number}.ring") >= 1


def test_the_published_position_is_never_zeroed(tmp_path):
    """Read many times while it is written: a kill at any of these times is harmless."""
    path = tmp_path / "0-0.ring"
    ready, write = os.pipe()
    child = os.fork()
    if child == 0:
        os.close(ready)
        write_until_killed(path, write)
    os.close(write)
    os.read(ready, 8)
    drain = threading.Thread(target=_drain, args=(ready,))
    drain.start()
    reader = RingReader(path)
    positions = [reader._words[WORD_POSITION] for _ in range(300_000)]
    reader.close()
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    drain.join()

    assert positions == sorted(positions)
    assert positions[0] > 0


def _drain(descriptor):
    while os.read(descriptor, 65536):
        pass
    os.close(descriptor)


def _damage(path: Path, at: int, content: bytes = b"\xa5") -> bytes:
    with path.open("r+b") as file:
        file.seek(at)
        before = file.read(len(content))
        file.seek(at)
        file.write(content)
    return before


def test_equal_numbers_in_a_record_are_not_taken_for_a_frame(ring, reader):
    """Step and step index are usually equal, and `crc32(b"", n) == n`."""
    for number in range(1, 5001):
        ring.write(struct.pack("QQQ", number, number, number))

    batch = reader.read(RingCursor())

    assert batch.lost_frames + len(batch.payloads) == 5000
    assert [struct.unpack("QQQ", payload)[0] for payload in batch.payloads] == [*batch.sequences]
    assert (batch.corrupt_frames, batch.sequences[-1]) == (0, 5000)


def test_a_reader_that_is_overrun_while_it_reads_keeps_a_growing_margin(ring):
    """Otherwise a fast writer would overrun it again at once."""
    reader, cursor, lost, read = RingReader(ring.path), RingCursor(), 0, 0
    for _ in range(200):
        for _ in range(900):
            ring.write(b"x" * 60)
        batch = reader.read(cursor, max_frames=100)
        cursor, lost, read = batch.cursor, lost + batch.lost_frames, read + len(batch.payloads)

    assert read == 200 * 100
    rest = reader.read(cursor)
    assert lost + read + rest.lost_frames + len(rest.payloads) == 200 * 900
    reader.close()
