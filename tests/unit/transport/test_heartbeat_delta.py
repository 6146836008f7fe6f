"""Heartbeats are sent as differences and decoded completely."""

from __future__ import annotations

from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.batches import are_equal, first_message, json_entry, refusal_reason

from sentinel.model.record import Event, Record
from sentinel.transport.batch_codec import BatchDecoder, BatchEncoder

KEYS = st.sampled_from(["idle_seconds", "ranks_running", "straggler_ranks"])
HEARTBEATS = st.builds(
    Record,
    run=st.just("run"),
    rank=st.just(-1),
    step=st.integers(-(2**63), 2**63 - 1),
    time=st.floats(allow_nan=True, allow_infinity=True),
    event=st.just(Event.HEARTBEAT),
    values=st.dictionaries(KEYS, st.sampled_from([0.0, -0.0, 1.0, nan, inf])),
    attributes=st.dictionaries(KEYS, st.sampled_from(["", "3", "yes"])),
)


@given(st.lists(st.lists(HEARTBEATS, max_size=3), max_size=4))
def test_heartbeats_are_decoded_as_they_were_encoded(messages):
    encoder, decoder = BatchEncoder(), BatchDecoder("run")

    for heartbeats in messages:
        assert are_equal(decoder.decode(encoder.encode(heartbeats, 1, 0, 0.0)).entries, heartbeats)


def test_a_repeated_heartbeat_is_small():
    attributes = {
        "state": "running",
        "died_ranks": "",
        "failed_ranks": "",
        "straggler_ranks": "3",
        "straggler_step": "12",
    }
    values = {"ranks_running": 8.0, "ranks_gone": 0.0, "ranks_failed": 0.0, "idle_seconds": 0.25}
    heartbeat = Record("run", -1, 12, 1.0, Event.HEARTBEAT, values, attributes)
    encoder = BatchEncoder()
    encoder.encode([heartbeat], 1, 0, 0.0)

    moved = replace(heartbeat, step=13, values={**values, "idle_seconds": 0.5})

    assert len(encoder.encode([moved], 1, 0, 0.0)) < 120


@pytest.mark.parametrize("position", ["0", "1"])
def test_a_difference_names_its_field_by_position(position):
    heartbeats = [
        Record(
            "run",
            -1,
            0,
            1.0,
            Event.HEARTBEAT,
            {"idle": 1.0, "ranks_gone": 2.0},
            {"state": "running"},
        )
    ]
    heartbeats += [
        replace(
            heartbeats[0],
            values={**heartbeats[0].values, "idle" if position == "0" else "ranks_gone": 3.0},
        )
    ]
    encoder, decoder = BatchEncoder(), BatchDecoder("run")
    decoder.decode(encoder.encode(heartbeats[:1], 1, 0, 0.0))

    data = encoder.encode(heartbeats[1:], 1, 0, 0.0)

    assert data.endswith(f'["heartbeat",{{"{position}":3.0}},{{}},true]'.encode())
    assert are_equal(decoder.decode(data).entries, heartbeats[1:])


@pytest.mark.parametrize("position", ["2", "-1", "01", "idle", ""])
def test_a_difference_at_an_invalid_position_is_refused(position):
    full, delta = (
        '["heartbeat",{"idle":1.0,"ranks_gone":2.0},{}]',
        f'["heartbeat",{{"{position}":3.0}},{{}},true]',
    )
    entries = json_entry(3, full) + json_entry(3, delta)

    assert refusal_reason(BatchDecoder("run"), first_message(entries)) == "damaged"
