"""Logging any value never raises, and values that are dropped are counted."""

from decimal import Decimal
from fractions import Fraction
from math import inf, isnan, nan

import numpy as np
import pytest
import torch
from support.recorders import Hostile, HostileFloat, RecordedRank

from sentinel.client.capture.scalars import RejectedValueError, read_number
from sentinel.client.log_schema import MAX_NAMES
from sentinel.model.record import Event


@pytest.fixture
def rank(tmp_path):
    return RecordedRank(tmp_path / "0-0.ring")


GOOD = [
    (1.5, 1.5),
    (3, 3.0),
    (-0.0, -0.0),
    (5e-324, 5e-324),
    (inf, inf),
    (10**300, 1e300),
    (np.float32(0.5), 0.5),
    (np.float64(0.5), 0.5),
    (np.int64(7), 7.0),
    (np.array(2.0), 2.0),
    (np.array([2]), 2.0),
    (torch.tensor(0.25), 0.25),
    (torch.tensor([0.25]), 0.25),
    (torch.tensor(3), 3.0),
    (torch.tensor(0.5, dtype=torch.bfloat16), 0.5),
    (torch.tensor(1.0, requires_grad=True) * 2, 2.0),
    (torch.nn.Parameter(torch.tensor(0.75)), 0.75),
]


BAD = [
    (None, "type"),
    ("0.5", "type"),
    (b"0.5", "type"),
    (True, "type"),
    (1j, "type"),
    (Decimal(1), "type"),
    (Fraction(1, 2), "type"),
    ([0.5], "type"),
    ({"nested": 0.5}, "type"),
    (Hostile(), "type"),
    (HostileFloat(1.0), "type"),
    (Hostile, "type"),
    (10**400, "range"),
    (np.array([1.0, 2.0]), "shape"),
    (np.array([]), "shape"),
    (np.bool_(True), "type"),
    (np.complex128(1j), "type"),
    (np.str_("1"), "type"),
    (np.datetime64("2020-01-01"), "type"),
    (np.array([None]), "type"),
    (torch.ones(3), "shape"),
    (torch.ones(0), "shape"),
    (torch.tensor(True), "type"),
    (torch.tensor(1j), "type"),
    (torch.tensor(1.0, device="meta"), "type"),
    (torch.eye(1).to_sparse(), "type"),
]


@pytest.mark.fault("I1", "I2")
@pytest.mark.parametrize(("value", "read"), GOOD, ids=lambda v: type(v).__name__)
def test_every_kind_of_number_is_read(rank, value, read):
    rank.recorder.log({"x": value})

    assert rank.values() == [{"x": read}]
    assert rank.drops() == {}


def test_nan_is_recorded(rank):
    rank.recorder.log({"a": nan, "b": torch.tensor(nan), "c": np.float32("nan")})

    assert all(isnan(value) for value in rank.values()[0].values())


# By index: pytest formats parameters, which some of these values do not survive.
_each_bad = pytest.mark.parametrize(
    "index", range(len(BAD)), ids=lambda at: f"{type(BAD[at][0]).__name__}-{at}"
)


@pytest.mark.fault("I1", "I2")
@_each_bad
def test_a_value_that_is_not_a_number_is_dropped_and_counted(rank, index):
    value, reason = BAD[index]
    rank.recorder.log({"good": 1.0, "bad": value})

    assert rank.values() == [{"good": 1.0}]
    assert rank.drops() == {reason: 1}


@_each_bad
def test_an_invalid_value_is_dropped_also_after_a_valid_one(rank, index):
    """A cached schema must not accept what the first log would have dropped."""
    for logged in (1.0, BAD[index][0], 2.0):
        rank.recorder.log({"good": 1.0, "x": logged})

    assert [values.get("x") for values in rank.values()] == [1.0, None, 2.0]


@pytest.mark.fault("I4")
@pytest.mark.parametrize("name", ["", "x" * 300, 5, None, ("a",), b"x"])
def test_a_name_that_is_not_a_short_text_is_dropped(rank, name):
    rank.recorder.log({name: 1.0, "good": 1.0})

    assert rank.values() == [{"good": 1.0}]
    assert rank.drops() == {"key": 1}


class HostileText(str):  # noqa: SLOT000 - it has an attribute
    """Equal to a text by its hash, and of which no method may be called once it is in a dict."""

    is_in_dict = False

    def __hash__(self):
        assert not self.is_in_dict
        return str.__hash__(self)

    def __eq__(self, other):
        raise SystemExit("compared")


class HostileKey:
    """The same, of another type."""

    is_in_dict = False

    def __hash__(self):
        assert not self.is_in_dict
        return hash("loss")

    __eq__ = HostileText.__eq__


@pytest.mark.fault("I3")
@pytest.mark.parametrize("make", [lambda: HostileText("loss"), HostileKey], ids=["text", "object"])
def test_a_key_is_never_compared(rank, make):
    """In the ways of a first log, of the next one with the same names, and of events."""
    key = make()
    values, texts = {key: 1.0, "good": 2.0}, {key: "text", "good": 2.0}
    key.is_in_dict = True
    rank.recorder.log(values)
    for step in range(3):
        rank.recorder.log({"loss": 1.0, "good": 2.0}, step)
    rank.recorder.log(values, 3)
    rank.recorder.log(values, 4, 2.0)
    rank.recorder.log_from_framework(values, 5)
    rank.recorder.record_event(Event.EVAL, 6, values)
    rank.recorder.record_event(Event.METADATA, 7, texts)

    found = [
        {name: each[name] for name in ("loss", "good") if name in each} for each in rank.values()
    ]
    assert found == [{"good": 2.0}, *[{"loss": 1.0, "good": 2.0}] * 3, *[{"good": 2.0}] * 5]
    assert rank.drops() == {"key": 6}


@pytest.mark.fault("I4")
@pytest.mark.parametrize("name", ["a/b", "\n", "\ud800", "☃", "__proto__", "x" * 256])
def test_an_unusual_name_is_kept_unchanged(rank, name):
    rank.recorder.log({name: 1.0})

    assert rank.values() == [{name: 1.0}]


def test_a_log_that_is_not_a_dict_is_dropped(rank):
    for values in (None, 5, "loss", [("loss", 1.0)], Hostile()):
        rank.recorder.log(values)

    assert rank.drops() == {"type": 5}


@pytest.mark.fault("H5", "X13")
def test_the_number_of_names_is_limited(rank):
    for number in range(MAX_NAMES + 10):
        rank.recorder.log({f"name {number}": 1.0})

    assert rank.drops() == {"too_many_names": 10}


@pytest.mark.fault("I2")
def test_a_value_on_a_device_is_never_read(rank):
    """Reading it would wait for the device."""
    fake = torch.tensor(1.0, device="meta")

    with pytest.raises(RejectedValueError):
        read_number(fake)
