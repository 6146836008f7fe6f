"""Parcel: what goes in comes out, in its order and to the last bit, or is refused."""

from __future__ import annotations

import json
import struct
from collections import defaultdict
from dataclasses import replace
from math import inf, nan

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.batches import bits, exact, explained, in_words, refused, same

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
def test_any_records_come_out_as_they_went_in(parcels, row, clock):
    writer, reader = BatchEncoder(), BatchDecoder("run")

    for number, records in enumerate(parcels, 1):
        parcel = reader.decode(writer.encode(records, row, row, clock))
        assert same(parcel.entries, records)
        assert (parcel.number, parcel.first_row, parcel.last_row) == (number, row, row)
        assert bits(parcel.sender_time) == bits(clock)


@given(st.lists(RECORDS, max_size=5))
def test_a_parcel_that_stands_for_itself_is_read_by_anybody(records):
    assert same(decode_standalone(encode_standalone(records), "run"), records)


def test_numbers_that_are_none_come_through():
    told = [step(loss=nan, grad_norm=inf, kl=-inf, reward=-0.0, entropy=5e-324)]

    assert same(decode_standalone(encode_standalone(told), "run"), told)
    # As JSON as well.
    told = [replace(told[0], attributes={"a": "b"})]
    assert same(decode_standalone(encode_standalone(told), "run"), told)


def test_records_are_of_the_run_that_reads_them():
    assert decode_standalone(encode_standalone([step()]), "other")[0].run == "other"


def test_a_number_costs_eight_bytes_once_its_name_is_explained():
    writer = BatchEncoder()
    writer.encode([step(loss=1.0, kl=2.0)], 1, 1, 0.0)

    again = writer.encode([step(loss=1.5, kl=2.5), step(loss=1.0, kl=2.0)], 2, 2, 0.0)

    assert len(again) == MESSAGE_HEADER.size + 2 * (ENTRY_HEADER.size + 12 + 16)


def test_who_spoke_last_is_not_named_again():
    told = [make_batch([step(number, rank, loss=0.5) for rank in (0, 1)]) for number in (1, 2)]
    told += [replace(told[1], ranks=(2, 1)), step(3, rank=2, loss=8.0)]
    told += [replace(each, attempt=1) for each in told[:2]]
    writer, reader = BatchEncoder(), BatchDecoder("run")
    parcels = [writer.encode([each], 1, 1, 0.0) for each in told]

    assert [each for data in parcels for each in reader.decode(data).entries] == told
    assert len(parcels[1]) == MESSAGE_HEADER.size + ENTRY_HEADER.size + 2 * (12 + 8)
    assert len(parcels[5]) == len(parcels[1])


def test_beyond_the_names_that_are_explained_numbers_travel_with_theirs():
    told = [
        step(number, **{f"name-{number}": float(number)}) for number in range(MAX_NAME_SETS + 50)
    ]
    writer, reader = BatchEncoder(), BatchDecoder("run")

    for some in (told[:3000], told[3000:], told):
        assert same(reader.decode(writer.encode(some, 1, 1, 0.0)).entries, some)


def test_there_may_be_more_ranks_and_attempts_than_fit_in_two_bytes():
    told = [step(1, rank, attempt, loss=1.0) for attempt in range(3) for rank in range(0x8000)]
    writer, reader = BatchEncoder(), BatchDecoder("run")

    for some in (told[:0x10000], told[0x10000:], told[-5:]):
        assert same(reader.decode(writer.encode(some, 1, 1, 0.0)).entries, some)


def test_a_parcel_that_comes_again_or_too_early_is_refused_and_the_next_is_read():
    writer, reader = BatchEncoder(), BatchDecoder("run")
    first, second, third = (
        writer.encode([step(n, **{f"name-{n}": 1.0})], n, n, 0.0) for n in (1, 2, 3)
    )
    reader.decode(first)

    assert refused(reader, first) == "repeated"
    assert refused(reader, third) == "gap"
    assert reader.decode(second).entries[0].step == 2
    assert reader.decode(third).entries[0].step == 3


@given(st.data())
def test_a_parcel_that_is_cut_short_is_refused(data):
    whole = encode_standalone(
        [step(1, loss=1.0, kl=2.0), replace(step(2, loss=1.0), attributes={"a": "b"})]
    )
    cut = data.draw(st.integers(0, len(whole) - 1))

    # Between two records nothing shows that there were more: the seal sees to that.
    assert outcome(whole[:cut]) in {"damaged", "0 read", "1 read"}


@settings(max_examples=3 * settings.default.max_examples)
@given(st.binary(max_size=120))
def test_garbage_is_refused_and_never_anything_worse(garbage):
    known = {"damaged", "gap", "repeated", "0 read"}

    assert outcome(garbage) in known
    assert outcome(MESSAGE_HEADER.pack(1, 0, 0, 0.0, 0) + garbage) in known


@pytest.mark.parametrize(
    "told",
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
def test_explanations_that_are_none_are_refused(told):
    assert (
        refused(BatchDecoder("run"), MESSAGE_HEADER.pack(1, 0, 0, 0.0, len(told)) + told.encode())
        == "damaged"
    )


@pytest.mark.parametrize(
    "told",
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
def test_a_record_told_in_words_that_are_none_is_refused(told):
    assert refused(BatchDecoder("run"), explained(in_words(0, told))) == "damaged"


@pytest.mark.parametrize("sender", [1, 0xFFFFFFFF])
def test_a_record_of_whom_nobody_explained_is_refused(sender):
    told = ENTRY_HEADER.pack(0, 1, 1, 1) + JSON_RECORD_HEADER.pack(sender, 1, 1.0, 0)

    assert refused(BatchDecoder("run"), explained(told)) == "damaged"


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
        *("stranger", "twice", "attempts", "run", "nobody", "many", "unknown", "far"),
        *("again", "again nobody", "no names"),
    ],
)
def test_a_sheet_that_cannot_be_one_is_refused(names, count, numbers):
    layout = "<" + "".join("I" if isinstance(number, int) else "d" for number in numbers)
    told = ENTRY_HEADER.pack(names, count, 1, 1) + struct.pack(layout, *numbers)

    assert refused(BatchDecoder("run"), explained(told)) == "damaged"


@pytest.mark.parametrize(
    ("names", "count"), [(SAME_RANKS_FLAG + 1, 1), (SAME_RANKS_FLAG + 1, 3), (SAME_RANKS_FLAG, 2)]
)
def test_others_than_spoke_last_cannot_speak_again(names, count):
    first = ENTRY_HEADER.pack(1, 2, 1, 1) + struct.pack("<4I4d", 0, 1, 1, 1, 1.0, 1.0, 0.5, 0.5)
    again = ENTRY_HEADER.pack(names, count, 2, 2) + struct.pack(
        f"<{count}I{2 * count}d", *[1] * 3 * count
    )

    assert refused(BatchDecoder("run"), explained(first + again)) == "damaged"


def test_names_that_come_twice_in_a_set_are_refused():
    told = json.dumps([[], [["loss", "loss"]]]).encode()

    assert (
        refused(BatchDecoder("run"), MESSAGE_HEADER.pack(1, 1, 1, 0.0, len(told)) + told)
        == "damaged"
    )


@given(st.lists(st.lists(RECORDS, max_size=6), max_size=3))
def test_gathered_or_not_every_rank_is_heard_in_its_order(parcels):
    writer, reader = BatchEncoder(), BatchDecoder("run")

    for records in parcels:
        read = reader.decode(writer.encode(coalesce(records), 1, 1, 0.0)).entries
        assert by_rank(iter_records(read)) == by_rank(records)


def by_rank(records):
    told = defaultdict(list)
    for record in records:
        told[record.rank].append(exact(record))
    return told
