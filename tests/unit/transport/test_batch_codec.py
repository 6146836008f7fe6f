"""Batch messages are decoded bit-exactly and in order, or refused."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import are_equal, bits, comparable, first_message, json_entry, refusal_reason

from sentinel.model.record import Event, Record
from sentinel.model.record_batch import coalesce, iter_records, make_batch
from sentinel.transport.batch_codec import (
    ENTRY_HEADER,
    JSON_RECORD_HEADER,
    MAX_NAME_SETS,
    MESSAGE_HEADER,
    SAME_RANKS_FLAG,
    BatchDecoder,
    BatchEncoder,
    BatchMessageError,
    decode_standalone,
    encode_standalone,
)

NUMBERS = st.integers(-(2**63), 2**63 - 1)
FLOATS = st.floats(allow_nan=True, allow_infinity=True)
NAMES = st.text(max_size=8)
RECORDS = st.builds(
    Record,
    run=st.just("run"),
    rank=st.integers(-1, 1 << 40),
    step=NUMBERS,
    time=FLOATS,
    event=st.sampled_from([*[Event.STEP] * 8, *Event]),
    values=st.dictionaries(NAMES, FLOATS, max_size=5),
    attributes=st.one_of(st.just({}), st.dictionaries(NAMES, st.text(max_size=20), max_size=3)),
    attempt=st.integers(0, 1 << 40),
    step_index=NUMBERS,
    sequence=st.integers(0, 0xFFFFFFFF),
)


def step(number=1, rank=0, attempt=0, **values):
    return Record("run", rank, number, 1.0, values=values, attempt=attempt, step_index=number)


def outcome(data):
    try:
        return f"{len(decode_standalone(data, 'run'))} read"
    except BatchMessageError as error:
        return error.reason


@settings(max_examples=2 * settings.default.max_examples)
@given(st.lists(st.lists(RECORDS, max_size=4), max_size=4), st.integers(0, 2**64 - 1), FLOATS)
def test_any_records_are_decoded_as_they_were_encoded(messages, row, clock):
    encoder, decoder = BatchEncoder(), BatchDecoder("run")

    for number, records in enumerate(messages, 1):
        message = decoder.decode(encoder.encode(records, row, row, clock))
        assert are_equal(message.entries, records)
        assert (message.number, message.first_row, message.last_row) == (number, row, row)
        assert bits(message.sender_time) == bits(clock)


@given(st.lists(RECORDS, max_size=5))
def test_a_standalone_message_needs_no_earlier_one(records):
    assert are_equal(decode_standalone(encode_standalone(records), "run"), records)


def test_nan_and_infinity_are_preserved():
    entries = [step(loss=nan, grad_norm=inf, kl=-inf, reward=-0.0, entropy=5e-324)]

    assert are_equal(decode_standalone(encode_standalone(entries), "run"), entries)
    # Also as JSON.
    entries = [replace(entries[0], attributes={"a": "b"})]
    assert are_equal(decode_standalone(encode_standalone(entries), "run"), entries)


def test_decoded_records_belong_to_the_run_of_the_decoder():
    assert decode_standalone(encode_standalone([step()]), "other")[0].run == "other"


def test_a_value_costs_eight_bytes_once_its_name_is_defined():
    encoder = BatchEncoder()
    encoder.encode([step(loss=1.0, kl=2.0)], 1, 1, 0.0)

    again = encoder.encode([step(loss=1.5, kl=2.5), step(loss=1.0, kl=2.0)], 2, 2, 0.0)

    assert len(again) == MESSAGE_HEADER.size + 2 * (ENTRY_HEADER.size + 12 + 16)


def test_the_same_ranks_are_not_named_again():
    entries = [make_batch([step(number, rank, loss=0.5) for rank in (0, 1)]) for number in (1, 2)]
    entries += [replace(entries[1], ranks=(2, 1)), step(3, rank=2, loss=8.0)]
    entries += [replace(entry, attempt=1) for entry in entries[:2]]
    encoder, decoder = BatchEncoder(), BatchDecoder("run")
    messages = [encoder.encode([entry], 1, 1, 0.0) for entry in entries]

    assert [entry for data in messages for entry in decoder.decode(data).entries] == entries
    assert len(messages[1]) == MESSAGE_HEADER.size + ENTRY_HEADER.size + 2 * (12 + 8)
    assert len(messages[5]) == len(messages[1])


def test_values_beyond_the_name_set_limit_are_sent_as_json():
    entries = [
        step(number, **{f"name-{number}": float(number)}) for number in range(MAX_NAME_SETS + 50)
    ]
    encoder, decoder = BatchEncoder(), BatchDecoder("run")

    for some in (entries[:3000], entries[3000:], entries):
        assert are_equal(decoder.decode(encoder.encode(some, 1, 1, 0.0)).entries, some)


def test_there_may_be_more_ranks_and_attempts_than_fit_in_two_bytes():
    entries = [step(1, rank, attempt, loss=1.0) for attempt in range(3) for rank in range(0x5600)]
    encoder, decoder = BatchEncoder(), BatchDecoder("run")

    for some in (entries[:0x10000], entries[0x10000:], entries[-5:]):
        assert are_equal(decoder.decode(encoder.encode(some, 1, 1, 0.0)).entries, some)


def test_a_repeated_or_early_message_is_refused():
    encoder, decoder = BatchEncoder(), BatchDecoder("run")
    first, second, third = (
        encoder.encode([step(n, **{f"name-{n}": 1.0})], n, n, 0.0) for n in (1, 2, 3)
    )
    decoder.decode(first)

    assert refusal_reason(decoder, first) == "repeated"
    assert refusal_reason(decoder, third) == "gap"
    assert decoder.decode(second).entries[0].step == 2
    assert decoder.decode(third).entries[0].step == 3


@given(st.data())
def test_a_truncated_message_is_refused(data):
    encoded = encode_standalone(
        [step(1, loss=1.0, kl=2.0), replace(step(2, loss=1.0), attributes={"a": "b"})]
    )
    cut = data.draw(st.integers(0, len(encoded) - 1))

    # A cut between two records is not visible here; the message authentication detects it.
    assert outcome(encoded[:cut]) in {"damaged", "0 read", "1 read"}


@pytest.mark.fault("X11")
@settings(max_examples=3 * settings.default.max_examples)
@given(st.binary(max_size=120))
def test_garbage_is_refused_and_never_anything_worse(garbage):
    known = {"damaged", "gap", "repeated", "0 read"}

    assert outcome(garbage) in known
    assert outcome(MESSAGE_HEADER.pack(1, 0, 0, 0.0, 0) + garbage) in known


@pytest.mark.parametrize(
    "entries",
    [
        '[[[0,0]],[["a"]',
        "[]",
        "7",
        '{"a":1}',
        "[[[0]],[]]",
        '[[["x","y"]],[]]',
        "[[[0,0]],[7]]",
        "[" * 100_000,
        f"[[[{'9' * 5000},0]],[]]",
        f"[[[0,{1 << 63}]],[]]",
        "[[[0,1.5]],[]]",
    ],
)
def test_invalid_definitions_are_refused(entries):
    assert (
        refusal_reason(
            BatchDecoder("run"), MESSAGE_HEADER.pack(1, 0, 0, 0.0, len(entries)) + entries.encode()
        )
        == "damaged"
    )


@pytest.mark.parametrize(
    "entries",
    [
        "[]",
        '["step",{},{},{}]',
        '["nothing",{},{}]',
        '["step",{"loss":"x"},{}]',
        '["heartbeat",{"0":1.0},{},true]',
        '["heartbeat",{"loss":1.0},{},true]',
        '["step",{"loss":null},{}]',
        '["step",[1.0],{}]',
        '["step",{},[]]',
        f'["step",{{"loss":{"9" * 400}}},{{}}]',
        f'["step",{{"loss":{"9" * 5000}}},{{}}]',
    ],
)
def test_an_invalid_json_record_is_refused(entries):
    assert refusal_reason(BatchDecoder("run"), first_message(json_entry(0, entries))) == "damaged"


@pytest.mark.parametrize("sender", [1, 0xFFFFFFFF])
def test_a_record_of_an_undefined_sender_is_refused(sender):
    entries = ENTRY_HEADER.pack(0, 1, 1, 1) + JSON_RECORD_HEADER.pack(sender, 1, 1.0, 0)

    assert refusal_reason(BatchDecoder("run"), first_message(entries)) == "damaged"


@pytest.mark.parametrize(
    ("names", "count", "numbers"),
    [
        (1, 2, (0, 7, 1, 1, 1.0, 1.0, 0.5, 0.5)),
        (1, 2, (0, 0, 1, 1, 1.0, 1.0, 0.5, 0.5)),
        (1, 2, (0, 2, 1, 1, 1.0, 1.0, 0.5, 0.5)),
        (1, 2, (0, 3, 1, 1, 1.0, 1.0, 0.5, 0.5)),
        (1, 0, ()),
        (1, 0xFFFFFFFF, ()),
        (2, 1, (0, 1, 1.0, 0.5)),
        (0xFFFF, 1, (0, 1, 1.0, 0.5)),
        (SAME_RANKS_FLAG + 1, 1, (1, 1.0, 0.5)),
        (SAME_RANKS_FLAG + 1, 0, ()),
        (SAME_RANKS_FLAG, 0, ()),
    ],
    ids=[
        *("stranger", "twice", "attempts", "run", "none", "many", "unknown", "far"),
        *("again", "again none", "no names"),
    ],
)
def test_an_invalid_batch_is_refused(names, count, numbers):
    layout = "<" + "".join("I" if isinstance(number, int) else "d" for number in numbers)
    entries = ENTRY_HEADER.pack(names, count, 1, 1) + struct.pack(layout, *numbers)

    assert refusal_reason(BatchDecoder("run"), first_message(entries)) == "damaged"


@pytest.mark.parametrize(
    ("names", "count"), [(SAME_RANKS_FLAG + 1, 1), (SAME_RANKS_FLAG + 1, 3), (SAME_RANKS_FLAG, 2)]
)
def test_the_same_ranks_flag_needs_the_same_number_of_ranks(names, count):
    first = ENTRY_HEADER.pack(1, 2, 1, 1) + struct.pack("<4I4d", 0, 1, 1, 1, 1.0, 1.0, 0.5, 0.5)
    again = ENTRY_HEADER.pack(names, count, 2, 2) + struct.pack(
        f"<{count}I{2 * count}d", *[1] * 3 * count
    )

    assert refusal_reason(BatchDecoder("run"), first_message(first + again)) == "damaged"


def test_a_repeated_name_in_a_set_is_refused():
    entries = json.dumps([[], [["loss", "loss"]]]).encode()

    assert (
        refusal_reason(
            BatchDecoder("run"), MESSAGE_HEADER.pack(1, 1, 1, 0.0, len(entries)) + entries
        )
        == "damaged"
    )


@given(st.lists(st.lists(RECORDS, max_size=6), max_size=3))
def test_coalescing_preserves_the_order_of_each_rank(messages):
    encoder, decoder = BatchEncoder(), BatchDecoder("run")

    for records in messages:
        read = decoder.decode(encoder.encode(coalesce(records), 1, 1, 0.0)).entries
        assert by_rank(iter_records(read)) == by_rank(records)


def by_rank(records):
    entries = defaultdict(list)
    for record in records:
        entries[record.rank].append(comparable(record))
    return entries
