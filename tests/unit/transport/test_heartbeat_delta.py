"""News: of a TICK travels what is new, and the whole of it arrives."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import explained, in_words, refused, same

from sentinel.model.record import Event, Record
from sentinel.transport.batch_codec import BatchDecoder, BatchEncoder

KEYS = st.sampled_from(["idle_seconds", "ranks_running", "straggler_ranks"])
TICKS = st.builds(
    Record,
    run=st.just("run"),
    rank=st.just(-1),
    step=st.integers(-(2**63), 2**63 - 1),
    time=st.floats(allow_nan=True, allow_infinity=True),
    event=st.just(Event.HEARTBEAT),
    values=st.dictionaries(KEYS, st.sampled_from([0.0, -0.0, 1.0, nan, inf])),
    attributes=st.dictionaries(KEYS, st.sampled_from(["", "3", "yes"])),
)


@given(st.lists(st.lists(TICKS, max_size=3), max_size=4))
def test_of_a_tick_only_what_is_new_travels_and_the_whole_arrives(parcels):
    writer, reader = BatchEncoder(), BatchDecoder("run")

    for told in parcels:
        assert same(reader.decode(writer.encode(told, 1, 0, 0.0)).entries, told)


def test_a_tick_that_says_the_same_again_costs_little():
    facts = {"state": "running", "died_ranks": "", "failed_ranks": "", "straggler_ranks": "3", "straggler_step": "12"}
    values = {"ranks_running": 8.0, "ranks_gone": 0.0, "ranks_failed": 0.0, "idle_seconds": 0.25}
    tick = Record("run", -1, 12, 1.0, Event.HEARTBEAT, values, facts)
    writer = BatchEncoder()
    writer.encode([tick], 1, 0, 0.0)

    moved = replace(tick, step=13, values={**values, "idle_seconds": 0.5})

    assert len(writer.encode([moved], 1, 0, 0.0)) < 120


@pytest.mark.parametrize("place", ["0", "1"])
def test_what_is_new_of_a_tick_is_told_by_its_place(place):
    told = [
        Record("run", -1, 0, 1.0, Event.HEARTBEAT, {"idle": 1.0, "ranks_gone": 2.0}, {"state": "running"})
    ]
    told += [replace(told[0], values={**told[0].values, "idle" if place == "0" else "ranks_gone": 3.0})]
    writer, reader = BatchEncoder(), BatchDecoder("run")
    reader.decode(writer.encode(told[:1], 1, 0, 0.0))

    data = writer.encode(told[1:], 1, 0, 0.0)

    assert data.endswith(f'["heartbeat",{{"{place}":3.0}},{{}},true]'.encode())
    assert same(reader.decode(data).entries, told[1:])


@pytest.mark.parametrize("place", ["2", "-1", "01", "idle", ""])
def test_what_is_new_in_a_place_that_is_none_is_refused(place):
    full, news = '["heartbeat",{"idle":1.0,"ranks_gone":2.0},{}]', f'["heartbeat",{{"{place}":3.0}},{{}},true]'
    ticks = in_words(3, full) + in_words(3, news)

    assert refused(BatchDecoder("run"), explained(ticks)) == "damaged"
