"""Pack: a record that went through bytes says what it said before."""

import json
from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.model.record import Event
from sentinel.transport.record_codec import (
    MAX_SCHEMAS,
    PayloadError,
    RecordDecoder,
    RecordEncoder,
    StepStamp,
    UnknownSchemaError,
)

NOW = StepStamp(step=500, step_index=3, time=1.5)


@pytest.fixture
def sent():
    return []


@pytest.fixture
def packer(sent):
    return RecordEncoder(sent.append)


def unpacked(sent):
    unpacker = RecordDecoder("run", attempt=1, rank=2)
    records = [unpacker.decode(payload) for payload in sent]
    return [record for record in records if record is not None]


def test_numbers_come_back_with_their_names_and_moment(packer, sent):
    packer.write_values(packer.schema_for(("loss", "kl/mean")), NOW, (0.5, -inf))

    (record,) = unpacked(sent)

    assert record.values == {"loss": 0.5, "kl/mean": -inf}
    assert (record.step, record.step_index, record.time, record.event) == (500, 3, 1.5, Event.STEP)
    assert (record.run, record.attempt, record.rank) == ("run", 1, 2)


def test_nan_stays_nan(packer, sent):
    packer.write_values(packer.schema_for(("loss",)), NOW, (nan,))
    packer.write_event(Event.EVAL, NOW, {"loss": nan})

    assert all(isnan(record.values["loss"]) for record in unpacked(sent))


def test_texts_come_back(packer, sent):
    packer.write_event(Event.STOP, NOW, {"code": 3}, {"outcome": "exit", "said": "☃\n\ud800"})

    (record,) = unpacked(sent)

    assert record.event is Event.STOP
    assert record.values == {"code": 3.0}
    assert record.attributes == {"outcome": "exit", "said": "☃\n\ud800"}


def test_a_name_sent_twice_counts_with_its_last_value(packer, sent):
    packer.write_values(packer.schema_for(("loss", "loss")), NOW, (1.0, 2.0))

    assert unpacked(sent)[0].values == {"loss": 2.0}


def test_names_are_sent_once_and_again_from_time_to_time(sent):
    packer = RecordEncoder(sent.append, resend_after_bytes=1000)
    schema = packer.schema_for(("loss",))
    for _ in range(100):
        packer.write_values(schema, NOW, (1.0,))
    names = [at for at, payload in enumerate(sent) if payload.startswith(b"N")]

    assert names[0] == 0
    assert len(names) == pytest.approx(100 * 40 / 1000, abs=2)


def test_numbers_without_names_are_refused_until_the_names_come_again(packer, sent):
    packer.write_values(packer.schema_for(("loss",)), NOW, (1.0,))
    names, numbers = sent
    unpacker = RecordDecoder("run", 0, 0)

    with pytest.raises(UnknownSchemaError):
        unpacker.decode(numbers)
    assert unpacker.decode(names) is None
    assert unpacker.decode(numbers).values == {"loss": 1.0}


def test_learnt_names_survive_a_restart_as_json(packer, sent):
    packer.write_values(packer.schema_for(("loss",)), NOW, (1.0,))
    before = RecordDecoder("run", 0, 0)
    before.decode(sent[0])

    after = RecordDecoder("run", 0, 0, json.loads(json.dumps(before.schemas)))

    assert after.decode(sent[1]).values == {"loss": 1.0}


def test_a_rank_that_makes_up_names_for_ever_fills_no_memory(packer, sent):
    unpacker = RecordDecoder("run", 0, 0)
    for number in range(3 * MAX_SCHEMAS):
        packer.write_values(packer.schema_for((f"name {number}",)), NOW, (1.0,))
        while sent:
            unpacker.decode(sent.pop(0))

    assert len(unpacker.schemas) == MAX_SCHEMAS


@given(
    st.one_of(st.binary(), st.binary().map(lambda tail: b"T" + tail), st.binary().map(b"V".__add__))
)
def test_bytes_that_are_no_record_are_refused(payload):
    with pytest.raises(PayloadError):
        RecordDecoder("run", 0, 0).decode(payload)


@given(
    st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False), max_size=30),
    st.integers(-(2**60), 2**60),
)
def test_any_names_and_numbers_come_back(values, step):
    sent = []
    packer = RecordEncoder(sent.append)
    packer.write_values(
        packer.schema_for(tuple(values)), StepStamp(step, 1, 0.0), tuple(values.values())
    )

    (record,) = unpacked(sent)

    assert record.values == values
    assert record.step == step


@pytest.mark.parametrize("step", [1 << 63, -(1 << 63) - 1, 10**400])
def test_a_step_beyond_what_can_be_stored_is_refused_where_it_is_read(step):
    payload = b"T" + json.dumps(["save", step, 1, 1.0, {}, {}]).encode()

    with pytest.raises(PayloadError):
        RecordDecoder("run", 0, 0).decode(payload)


def test_a_value_too_large_for_a_float_is_refused():
    payload = b"T" + json.dumps(["step", 1, 1, 1.0, {"loss": 10**400}, {}]).encode()

    with pytest.raises(PayloadError):
        RecordDecoder("run", 0, 0).decode(payload)
