"""A reader has the current header of its ring, and parses only what changed."""

from __future__ import annotations

from dataclasses import asdict
from random import Random

import pytest

from sentinel.transport.identity import Identity
from sentinel.transport.ring import MIN_CAPACITY_BYTES, RingReader, RingWriter
from sentinel.transport.ring_layout import ACTIVITIES, DROP_REASONS, HEADER_SIZE, parse_header


@pytest.fixture
def writer(tmp_path):
    ring = RingWriter(tmp_path / "a.ring", Identity("run", 0, 1, 1, 2, 2), MIN_CAPACITY_BYTES)
    yield ring
    ring.abandon()


def test_the_header_is_that_of_the_file_after_each_change(writer):
    random, reader = Random(1), RingReader(writer.path)
    changes = (
        lambda: writer.write(bytes(random.randrange(200))),
        lambda: writer.publish_step(random.randrange(99), writer.step_index + 1, random.random()),
        lambda: writer.begin_backward(random.randrange(99)),
        writer.count_activity,
        lambda: writer.set_activity(random.choice(ACTIVITIES)),
        lambda: writer.count_drop(random.choice(DROP_REASONS), random.randrange(1, 9)),
        writer.count_error,
    )

    for _ in range(200):
        before = reader.read_header()
        random.choice(changes)()
        header = reader.read_header()
        assert header == parse_header(writer.path.read_bytes()[:HEADER_SIZE])
        assert (header.process, header.identity) == (before.process, before.identity)
    reader.close()


def test_an_unchanged_header_is_not_built_again(writer):
    reader = RingReader(writer.path)
    writer.write(b"payload")

    header = reader.read_header()
    assert reader.read_header() is header
    assert asdict(header)["sequence"] == 1
    reader.close()
