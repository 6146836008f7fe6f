"""Records are decoded as they were encoded."""

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
def encoder(sent):
    return RecordEncoder(sent.append)


def decode_all(sent):
    decoder = RecordDecoder("run", attempt=1, rank=2)
    records = [decoder.decode(payload) for payload in sent]
    return [record for record in records if record is not None]


def test_values_are_decoded_with_their_names_and_stamp(encoder, sent):
    encoder.write_values(encoder.schema_for(("loss", "kl/mean")), NOW, (0.5, -inf))

    (record,) = decode_all(sent)

    assert record.values == {"loss": 0.5, "kl/mean": -inf}
    assert (record.step, record.step_index, record.time, record.event) == (500, 3, 1.5, Event.STEP)
    assert (record.run, record.attempt, record.rank) == ("run", 1, 2)


def test_nan_is_preserved(encoder, sent):
    encoder.write_values(encoder.schema_for(("loss",)), NOW, (nan,))
    encoder.write_event(Event.EVAL, NOW, {"loss": nan})

    assert all(isnan(record.values["loss"]) for record in decode_all(sent))


def test_texts_are_preserved(encoder, sent):
    encoder.write_event(Event.STOP, NOW, {"code": 3}, {"outcome": "exit", "text": "☃\n\ud800"})

    (record,) = decode_all(sent)

    assert record.event is Event.STOP
    assert record.values == {"code": 3.0}
    assert record.attributes == {"outcome": "exit", "text": "☃\n\ud800"}


def test_a_name_sent_twice_counts_with_its_last_value(encoder, sent):
    encoder.write_values(encoder.schema_for(("loss", "loss")), NOW, (1.0, 2.0))

    assert decode_all(sent)[0].values == {"loss": 2.0}


def test_names_are_sent_again_at_intervals(sent):
    encoder = RecordEncoder(sent.append, resend_after_bytes=1000)
    schema = encoder.schema_for(("loss",))
    for _ in range(100):
        encoder.write_values(schema, NOW, (1.0,))
    names = [at for at, payload in enumerate(sent) if payload.startswith(b"N")]

    assert names[0] == 0
    assert len(names) == pytest.approx(100 * 40 / 1000, abs=2)


def test_values_without_names_are_refused_until_the_names_are_sent_again(encoder, sent):
    encoder.write_values(encoder.schema_for(("loss",)), NOW, (1.0,))
    names, numbers = sent
    decoder = RecordDecoder("run", 0, 0)

    with pytest.raises(UnknownSchemaError):
        decoder.decode(numbers)
    assert decoder.decode(names) is None
    assert decoder.decode(numbers).values == {"loss": 1.0}


def test_schemas_survive_a_restart_as_json(encoder, sent):
    encoder.write_values(encoder.schema_for(("loss",)), NOW, (1.0,))
    before = RecordDecoder("run", 0, 0)
    before.decode(sent[0])

    after = RecordDecoder("run", 0, 0, json.loads(json.dumps(before.schemas)))

    assert after.decode(sent[1]).values == {"loss": 1.0}


def test_the_number_of_stored_schemas_is_limited(encoder, sent):
    decoder = RecordDecoder("run", 0, 0)
    for number in range(3 * MAX_SCHEMAS):
        encoder.write_values(encoder.schema_for((f"name {number}",)), NOW, (1.0,))
        while sent:
            decoder.decode(sent.pop(0))

    assert len(decoder.schemas) == MAX_SCHEMAS


@given(
    st.one_of(st.binary(), st.binary().map(lambda tail: b"T" + tail), st.binary().map(b"V".__add__))
)
def test_invalid_bytes_are_refused(payload):
    with pytest.raises(PayloadError):
        RecordDecoder("run", 0, 0).decode(payload)


@given(
    st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False), max_size=30),
    st.integers(-(2**60), 2**60),
)
def test_any_names_and_values_are_preserved(values, step):
    sent = []
    encoder = RecordEncoder(sent.append)
    encoder.write_values(
        encoder.schema_for(tuple(values)), StepStamp(step, 1, 0.0), tuple(values.values())
    )

    (record,) = decode_all(sent)

    assert record.values == values
    assert record.step == step


@pytest.mark.parametrize("step", [1 << 63, -(1 << 63) - 1, 10**400])
def test_a_step_beyond_64_bits_is_refused(step):
    payload = b"T" + json.dumps(["save", step, 1, 1.0, {}, {}]).encode()

    with pytest.raises(PayloadError):
        RecordDecoder("run", 0, 0).decode(payload)


def test_a_value_too_large_for_a_float_is_refused():
    payload = b"T" + json.dumps(["step", 1, 1, 1.0, {"loss": 10**400}, {}]).encode()

    with pytest.raises(PayloadError):
        RecordDecoder("run", 0, 0).decode(payload)
