"""Exact comparison of records, and batch messages with raw entries."""

from __future__ import annotations

import json
import struct
from dataclasses import fields
from functools import cache
from math import isnan

import pytest

from sentinel.transport.batch_codec import (
    ENTRY_HEADER,
    JSON_RECORD_HEADER,
    MESSAGE_HEADER,
    BatchMessageError,
)


def comparable(record):
    """The fields of a record for a bitwise comparison: NaN equals NaN, and 0.0 is not -0.0."""
    values = {name: getattr(record, name) for name in field_names(type(record))}
    values["time"] = bits(record.time)
    values["values"] = [(name, bits(value)) for name, value in record.values.items()]
    values["attributes"] = [*record.attributes.items()]
    return values


@cache
def field_names(kind):
    return [each.name for each in fields(kind)]


def bits(number):
    return "nan" if isnan(number) else struct.pack("<d", number)


def are_equal(records, others):
    return [comparable(each) for each in records] == [comparable(each) for each in others]


def refusal_reason(decoder, message):
    with pytest.raises(BatchMessageError) as caught:
        decoder.decode(message)
    return caught.value.reason


def first_message(body):
    """A first message with this body, which defines four senders and a set of one name."""
    definitions = json.dumps([[[0, 0], [0, 1], [1, 1], [0, -1]], [["loss"]]]).encode()
    return MESSAGE_HEADER.pack(1, 1, 1, 0.0, len(definitions)) + definitions + body


def json_entry(sender, text):
    """An entry with a record as JSON."""
    return (
        ENTRY_HEADER.pack(0, 1, 1, 1)
        + JSON_RECORD_HEADER.pack(sender, 1, 1.0, len(text))
        + text.encode()
    )
