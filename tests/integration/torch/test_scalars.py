"""Scalars: whatever people log, nothing raises, and what is left out is counted."""

from decimal import Decimal
from fractions import Fraction
from math import inf, isnan, nan

import numpy as np
import pytest
import torch
from support.recorders import Evil, EvilFloat, Told

from sentinel.client.capture.scalars import RejectedValueError, read_number
from sentinel.client.log_schema import MAX_NAMES


@pytest.fixture
def hook(tmp_path):
    return Told(tmp_path / "0-0.ring")


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
    (Evil(), "type"),
    (EvilFloat(1.0), "type"),
    (Evil, "type"),
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


@pytest.mark.parametrize(("value", "read"), GOOD, ids=lambda v: type(v).__name__)
def test_numbers_of_every_kind_are_read(hook, value, read):
    hook.recorder.log({"x": value})

    assert hook.values() == [{"x": read}]
    assert hook.drops() == {}


def test_nan_is_kept_for_it_is_what_we_look_for(hook):
    hook.recorder.log({"a": nan, "b": torch.tensor(nan), "c": np.float32("nan")})

    assert all(isnan(value) for value in hook.values()[0].values())


# By place: pytest itself looks at parameters more closely than some of these can bear.
_each_bad = pytest.mark.parametrize(
    "place", range(len(BAD)), ids=lambda at: f"{type(BAD[at][0]).__name__}-{at}"
)


@_each_bad
def test_what_is_no_number_is_left_out_and_counted(hook, place):
    value, reason = BAD[place]
    hook.recorder.log({"good": 1.0, "bad": value})

    assert hook.values() == [{"good": 1.0}]
    assert hook.drops() == {reason: 1}


@_each_bad
def test_a_bad_value_is_refused_also_where_a_good_one_was_before(hook, place):
    """The prepared plan of a log must not let through what the first look would have refused."""
    for logged in (1.0, BAD[place][0], 2.0):
        hook.recorder.log({"good": 1.0, "x": logged})

    assert [told.get("x") for told in hook.values()] == [1.0, None, 2.0]


@pytest.mark.parametrize("name", ["", "x" * 300, 5, None, ("a",), b"x"])
def test_a_name_that_is_no_short_text_is_refused(hook, name):
    hook.recorder.log({name: 1.0, "good": 1.0})

    assert hook.values() == [{"good": 1.0}]
    assert hook.drops() == {"key": 1}


@pytest.mark.parametrize("name", ["a/b", "\n", "\ud800", "☃", "__proto__", "x" * 256])
def test_an_odd_name_is_kept_as_it_is(hook, name):
    hook.recorder.log({name: 1.0})

    assert hook.values() == [{name: 1.0}]


def test_what_is_no_dictionary_is_refused(hook):
    for values in (None, 5, "loss", [("loss", 1.0)], Evil()):
        hook.recorder.log(values)

    assert hook.drops() == {"type": 5}


def test_endless_names_are_cut_off(hook):
    for number_ in range(MAX_NAMES + 10):
        hook.recorder.log({f"name {number_}": 1.0})

    assert hook.drops() == {"too_many_names": 10}


def test_values_are_read_without_the_operations_that_wait_for_a_device(hook):
    """A number on the host needs no device; one that is not must never be asked for here."""
    fake = torch.tensor(1.0, device="meta")

    with pytest.raises(RejectedValueError):
        read_number(fake)
