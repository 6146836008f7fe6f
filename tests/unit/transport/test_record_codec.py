"""Pack: a record that went through bytes says what it said before."""

import json
from math import inf, isnan, nan

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.model.record import Event
from sentinel.transport.record_codec import (
    SCHEMAS_KEPT,
    Moment,
    Packer,
    PayloadError,
    UnknownSchemaError,
    Unpacker,
)

NOW = Moment(step=500, beat=3, time=1.5)


@pytest.fixture
def sent():
    return []


@pytest.fixture
def packer(sent):
    return Packer(sent.append)


def unpacked(sent):
    unpacker = Unpacker("run", attempt=1, rank=2)
    records = [unpacker.unpack(payload) for payload in sent]
    return [record for record in records if record is not None]


def test_numbers_come_back_with_their_names_and_moment(packer, sent):
    packer.values(packer.schema(("loss", "kl/mean")), NOW, (0.5, -inf))

    (record,) = unpacked(sent)

    assert record.values == {"loss": 0.5, "kl/mean": -inf}
    assert (record.step, record.beat, record.time, record.event) == (500, 3, 1.5, Event.STEP)
    assert (record.run, record.attempt, record.rank) == ("run", 1, 2)


def test_nan_stays_nan(packer, sent):
    packer.values(packer.schema(("loss",)), NOW, (nan,))
    packer.text(Event.EVAL, NOW, {"loss": nan})

    assert all(isnan(record.values["loss"]) for record in unpacked(sent))


def test_texts_come_back(packer, sent):
    packer.text(Event.STOP, NOW, {"code": 3}, {"outcome": "exit", "said": "☃\n\ud800"})

    (record,) = unpacked(sent)

    assert record.event is Event.STOP
    assert record.values == {"code": 3.0}
    assert record.facts == {"outcome": "exit", "said": "☃\n\ud800"}


def test_a_name_sent_twice_counts_with_its_last_value(packer, sent):
    packer.values(packer.schema(("loss", "loss")), NOW, (1.0, 2.0))

    assert unpacked(sent)[0].values == {"loss": 2.0}


def test_names_are_sent_once_and_again_from_time_to_time(sent):
    packer = Packer(sent.append, again_after=1000)
    schema = packer.schema(("loss",))
    for _ in range(100):
        packer.values(schema, NOW, (1.0,))
    names = [at for at, payload in enumerate(sent) if payload.startswith(b"N")]

    assert names[0] == 0
    assert len(names) == pytest.approx(100 * 40 / 1000, abs=2)


def test_numbers_without_names_are_refused_until_the_names_come_again(packer, sent):
    packer.values(packer.schema(("loss",)), NOW, (1.0,))
    names, numbers = sent
    unpacker = Unpacker("run", 0, 0)

    with pytest.raises(UnknownSchemaError):
        unpacker.unpack(numbers)
    assert unpacker.unpack(names) is None
    assert unpacker.unpack(numbers).values == {"loss": 1.0}


def test_learnt_names_survive_a_restart_as_json(packer, sent):
    packer.values(packer.schema(("loss",)), NOW, (1.0,))
    before = Unpacker("run", 0, 0)
    before.unpack(sent[0])

    after = Unpacker("run", 0, 0, json.loads(json.dumps(before.names)))

    assert after.unpack(sent[1]).values == {"loss": 1.0}


def test_a_rank_that_makes_up_names_for_ever_fills_no_memory(packer, sent):
    unpacker = Unpacker("run", 0, 0)
    for number in range(3 * SCHEMAS_KEPT):
        packer.values(packer.schema((f"name {number}",)), NOW, (1.0,))
        while sent:
            unpacker.unpack(sent.pop(0))

    assert len(unpacker.names) == SCHEMAS_KEPT


@given(
    st.one_of(st.binary(), st.binary().map(lambda tail: b"T" + tail), st.binary().map(b"V".__add__))
)
def test_bytes_that_are_no_record_are_refused(payload):
    with pytest.raises(PayloadError):
        Unpacker("run", 0, 0).unpack(payload)


@given(
    st.dictionaries(st.text(max_size=20), st.floats(allow_nan=False), max_size=30),
    st.integers(-(2**60), 2**60),
)
def test_any_names_and_numbers_come_back(values, step):
    sent = []
    packer = Packer(sent.append)
    packer.values(packer.schema(tuple(values)), Moment(step, 1, 0.0), tuple(values.values()))

    (record,) = unpacked(sent)

    assert record.values == values
    assert record.step == step


@pytest.mark.parametrize("step", [1 << 63, -(1 << 63) - 1, 10**400])
def test_a_step_beyond_what_can_be_stored_is_refused_where_it_is_read(step):
    payload = b"T" + json.dumps(["save", step, 1, 1.0, {}, {}]).encode()

    with pytest.raises(PayloadError):
        Unpacker("run", 0, 0).unpack(payload)


def test_a_value_too_large_for_a_float_is_refused():
    payload = b"T" + json.dumps(["step", 1, 1, 1.0, {"loss": 10**400}, {}]).encode()

    with pytest.raises(PayloadError):
        Unpacker("run", 0, 0).unpack(payload)
