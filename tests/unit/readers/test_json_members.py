"""Tests of the reading of a JSON object that does not fit into memory."""

from __future__ import annotations

import io
import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sentinel.readers import json_members
from sentinel.readers.json_members import iterate_members

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(),
    lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner),
    max_leaves=20,
)


@pytest.fixture(params=[1, 3, 1 << 20])
def chunk(request, monkeypatch):
    """Bytes that are read at once: every value may end at the end of a chunk."""
    monkeypatch.setattr(json_members, "CHUNK_BYTES", request.param)


def read(text):
    """The object, put together again from its members."""
    found = {}
    data = text if isinstance(text, bytes) else text.encode("utf-8", "surrogatepass")
    for key, value, is_element in iterate_members(io.BytesIO(data), "rows"):
        if is_element:
            found["rows"].append(value)
        else:
            found[key] = value
    return found


@given(st.dictionaries(st.text() | st.just("rows"), JSON), st.sampled_from([None, 1]))
def test_what_json_writes_is_read(value, indent):
    for ascii_only in (True, False):
        text = json.dumps(value, indent=indent, ensure_ascii=ascii_only)
        assert repr(read(text)) == repr(json.loads(text))


@pytest.mark.parametrize(
    "text",
    [
        "{}",
        ' \n{ "rows" : [ ] , "a" : 1 }\n',
        '{"rows": [1, 2], "a": NaN, "b": -Infinity, "rows": [{"x": [3]}]}',
        '{"rows": {"a": 1}}',
        '{"rows": [], "rows": 5}',
        '\ufeff{"a": "\\ud800", "rows": ["\U0001f600"]}',
        '{"a": 123456789012345678901234567890, "b": 1.5e-7, "c": [-1.5E+3, 0.25]}',
    ],
)
def test_it_is_read_as_by_json(text, chunk):
    assert repr(read(text)) == repr(json.loads(text.encode()))


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "[]", "5", "{", '{"a"', '{"a":', '{"a": 1', '{"a": 1,', '{"a": 1,}', "{1: 2}",
        '{"rows": [', '{"rows": [1', '{"rows": [1,', '{"rows": [1,]}', '{"rows": [1]', '{"a": tru',
        '{"a": 1} {"b": 2}', '{"rows": [1 2]}', '{"a": "\x00"}', b'{"a": "\xff"}',
        '{"rows": [' + "[" * 100_000,
    ],
)  # fmt: skip
def test_damaged_text_is_refused(text, chunk):
    with pytest.raises(ValueError):
        read(text)


def test_a_value_that_is_too_large_is_refused(monkeypatch):
    monkeypatch.setattr(json_members, "CHUNK_BYTES", 100)
    monkeypatch.setattr(json_members, "MAX_VALUE_CHARACTERS", 1000)

    assert read(json.dumps({"rows": ["x" * 900] * 50}))["rows"] == ["x" * 900] * 50
    with pytest.raises(ValueError, match="more than"):
        read(json.dumps({"rows": ["x" * 5000]}))
