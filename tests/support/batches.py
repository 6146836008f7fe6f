"""Parcels as tests compare them, and as nobody should write them."""

from __future__ import annotations

import json
import struct
from dataclasses import fields
from math import isnan

import pytest

from sentinel.transport.batch_codec import (
    ENTRY_HEADER,
    JSON_RECORD_HEADER,
    MESSAGE_HEADER,
    BatchMessageError,
)


def exact(record):
    """A record as what can be compared bit for bit: NaN is itself, and 0.0 is not -0.0."""
    told = {each.name: getattr(record, each.name) for each in fields(record)}
    told["time"] = bits(record.time)
    told["values"] = [(name, bits(value)) for name, value in record.values.items()]
    told["facts"] = [*record.attributes.items()]
    return told


def bits(number):
    return "nan" if isnan(number) else struct.pack("<d", number)


def same(records, others):
    return [exact(each) for each in records] == [exact(each) for each in others]


def refused(reader, data):
    with pytest.raises(BatchMessageError) as caught:
        reader.decode(data)
    return caught.value.reason


def explained(body):
    """A first parcel in which four senders and a set of one name are known."""
    told = json.dumps([[[0, 0], [0, 1], [1, 1], [0, -1]], [["loss"]]]).encode()
    return MESSAGE_HEADER.pack(1, 1, 1, 0.0, len(told)) + told + body


def in_words(sender, told):
    """An entry that is told as JSON."""
    return (
        ENTRY_HEADER.pack(0, 1, 1, 1)
        + JSON_RECORD_HEADER.pack(sender, 1, 1.0, len(told))
        + told.encode()
    )
