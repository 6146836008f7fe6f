"""Reads a JSON object of any size: member by member, and one array in it element by element."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Iterator
from itertools import chain, islice
from typing import Any, BinaryIO, NamedTuple

CHUNK_BYTES = 1 << 20
MAX_VALUE_CHARACTERS = 1 << 24
"""Characters of one member, or of one element of the array, that are read."""

_SPACE = re.compile(r"[ \t\n\r]*")


class Member(NamedTuple):
    """A member of the object, or one element of the array that is read by element.

    The array itself comes first, as a member with the value [].
    """

    key: str
    value: Any
    is_element: bool = False


def iterate_members(file: BinaryIO, array_key: str) -> Iterator[Member]:
    """The members of the JSON object in a file in UTF-8; its array `array_key` by element.

    A file that is an array of objects is read as an object with only that member.

    What `json.loads` accepts is accepted, NaN and repeated keys included. Raises ValueError for
    anything else, and for a value of more than `MAX_VALUE_CHARACTERS`.
    """
    text = _Text(file)
    try:
        if text.next_character() == "[":
            members = [*islice(rows := _array_members(text, array_key), 2)]
            if len(members) == 1:
                raise ValueError("it is an empty list")
            if not isinstance(members[1].value, dict):
                raise ValueError("it is a list of something other than objects")
            yield from chain(members, rows)
        else:
            yield from _object_members(text, array_key)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    if text.next_character():
        raise ValueError("it has more than one value")


def _object_members(text: _Text, array_key: str) -> Iterator[Member]:
    text.expect("{")
    if text.next_character() == "}":
        text.expect("}")
        return
    while True:
        if text.next_character() != '"':
            raise ValueError("it has a key that is no string")
        key = text.read_value()
        text.expect(":")
        if key == array_key and text.next_character() == "[":
            yield from _array_members(text, key)
        else:
            yield Member(key, text.read_value())
        if text.next_character() == "}":
            text.expect("}")
            return
        text.expect(",")


def _array_members(text: _Text, key: str) -> Iterator[Member]:
    yield Member(key, [])
    for element in _array_elements(text):
        yield Member(key, element, is_element=True)


def _array_elements(text: _Text) -> Iterator[Any]:
    text.expect("[")
    if text.next_character() == "]":
        text.expect("]")
        return
    while True:
        yield text.read_value()
        if text.next_character() == "]":
            text.expect("]")
            return
        text.expect(",")


class _Text:
    """The text of a file, of which only the part around the current position is in memory."""

    def __init__(self, file: BinaryIO) -> None:
        self._file = file
        # As json.loads: with or without a byte order mark, and with surrogates.
        self._decode = codecs.getincrementaldecoder("utf-8-sig")("surrogatepass").decode
        self._decode_value = json.JSONDecoder().raw_decode
        self._text = ""
        self._at = 0
        self._is_complete = False

    def next_character(self) -> str:
        """The next character that is no space, which is not consumed; "" at the end."""
        while True:
            match = _SPACE.match(self._text, self._at)
            self._at = match.end() if match else self._at
            if self._at < len(self._text):
                return self._text[self._at]
            if self._is_complete:
                return ""
            self._read_more()

    def expect(self, character: str) -> None:
        """Consume that character. Raises ValueError if another one is next."""
        found = self.next_character()
        if found != character:
            what = f"has {found!r}" if found else "ends"
            raise ValueError(f"it {what} where {character!r} should be: it is damaged or cut off")
        self._at += 1

    def read_value(self) -> Any:
        """Consume one value."""
        if not self.next_character():
            raise ValueError("it ends where a value should be: it is cut off")
        while True:
            try:
                value, end = self._decode_value(self._text, self._at)
            except json.JSONDecodeError:
                if self._is_complete:
                    raise
            else:
                # A number may continue behind the part that is in memory: 1 of 1.5 is one too.
                rest = self._text[end : end + 1]
                if self._is_complete or (rest and rest not in ".eE"):
                    self._at = end
                    return value
            if len(self._text) - self._at > MAX_VALUE_CHARACTERS:
                limit = MAX_VALUE_CHARACTERS >> 20
                raise ValueError(f"it is damaged, or a value in it has more than {limit} MiB")
            self._read_more()

    def _read_more(self) -> None:
        """Add to the text; at least as much as is there, since it is parsed from its start."""
        rest = self._text[self._at :]
        data = self._file.read(max(CHUNK_BYTES, len(rest)))
        self._is_complete = not data
        self._text, self._at = rest + self._decode(data, final=not data), 0
