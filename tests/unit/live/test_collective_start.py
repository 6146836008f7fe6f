"""A START that another rank's process wrote down is known for what it is."""

from __future__ import annotations

import os
from dataclasses import replace

import pytest

from sentinel.live.rings import LiveRings
from sentinel.model.counters import Counters
from sentinel.model.record import Event
from sentinel.transport.identity import Identity
from sentinel.transport.paths import ring_path
from sentinel.transport.record_codec import RecordEncoder, StepStamp
from sentinel.transport.ring import RingWriter


@pytest.mark.parametrize(("more", "gathered"), [(0, None), (1, "yes")])
def test_only_what_its_own_process_wrote_is_at_first_hand(tmp_path, monkeypatch, more, gathered):
    monkeypatch.setenv("SENTINEL_HOME", str(tmp_path / "home"))
    monkeypatch.setenv("SENTINEL_RUNTIME_DIR", str(tmp_path / "rings"))
    who = Identity("told", world_size=2)
    ring = RingWriter(ring_path("told", 0, 1), replace(who, rank=1), 1 << 16)
    facts = {"pid": str(os.getpid() + more)}
    RecordEncoder(ring.write).write_event(Event.START, StepStamp(0, 0, 1.0), attributes=facts)

    (start, _) = LiveRings("told", Counters()).poll()

    assert start.attributes.get("via_collective") == gathered
    ring.close("finished")
