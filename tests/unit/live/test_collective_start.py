"""A START record that another rank's process wrote is marked."""

from __future__ import annotations

import os
from contextlib import closing
from dataclasses import replace

import pytest

from sentinel.live.rings import LiveRings
from sentinel.model.counters import Counters
from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path
from sentinel.transport.record_codec import RecordEncoder, StepStamp
from sentinel.transport.ring import RingWriter


@pytest.mark.parametrize(("pid_offset", "expected"), [(0, None), (1, "yes")])
def test_a_start_written_by_another_process_is_marked(tmp_path, monkeypatch, pid_offset, expected):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    identity = Identity("collective", world_size=2)
    ring = RingWriter(ring_path("collective", 0, 1), replace(identity, rank=1), 1 << 16)
    attributes = {"pid": str(os.getpid() + pid_offset)}
    RecordEncoder(ring.write).write_event(Event.START, StepStamp(0, 0, 1.0), attributes=attributes)

    with closing(LiveRings("collective", Counters())) as source:
        (start, _) = source.poll()

    assert start.attributes.get("via_collective") == expected
    ring.close("finished")
