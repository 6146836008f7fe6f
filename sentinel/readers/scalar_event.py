"""Scalar event: the numbers in one TensorBoard event, told by `simple_value` or a 0-d tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct, error

from sentinel.readers.protobuf import fields, inside, signed, text, varint

MOST_FORMS = 65536
STEP_KEY = b"\x10"
FLOAT, DOUBLE, INT32, INT64, HALF, BFLOAT16 = 1, 2, 3, 9, 19, 14
"""Types of a tensor that hold a number."""

_TIME = Struct("<d")
_F32 = Struct("<f")
_CONTENT = {
    FLOAT: _F32, DOUBLE: _TIME, INT32: Struct("<i"), INT64: Struct("<q"), HALF: Struct("<e"),
}  # fmt: skip
_SHAPE, _TENSOR_CONTENT, _FLOATS, _DOUBLES, _HALVES = 2, 4, 5, 6, 13
_INTEGERS = (7, 10)


Scalar = tuple[float, int, str, float]
"""Seconds since the epoch, step, tag, value."""


@dataclass
class ScalarEvents:
    """Takes events apart. Most are alike but for time, step and value, and are known by the rest.

    `forms` are the bytes between step and value, to the tag in them. `last` are the bytes of the
    step before, `step`: what is written together has one.
    """

    forms: dict[bytes, str] = field(default_factory=dict)
    last: bytes = b"?"
    step: int = 0

    def read(self, payload: bytes) -> list[Scalar]:
        """The numbers of an event. Raises ValueError if it is damaged."""
        if payload[:1] == b"\x09" and payload.startswith(self.last, 9):
            tag = self.forms.get(payload[9 + len(self.last) : -4])
            if tag is not None:
                time = _TIME.unpack_from(payload, 1)[0]
                return [(time, self.step, tag, _F32.unpack(payload[-4:])[0])]
        try:
            return self._read(payload)
        except error as wrong:
            raise ValueError(str(wrong)) from None

    def _read(self, payload: bytes) -> list[Scalar]:
        time, step = 0.0, 0
        found: list[tuple[str, float]] = []
        for number, content in fields(payload):
            if number == 1 and isinstance(content, bytes):
                time = _TIME.unpack(content)[0]
            elif number == 2 and isinstance(content, int):
                step = signed(content)
            elif number == 5:
                found += _summary(content)
        if len(found) == 1:
            self._remember(payload, step, found[0][0])
        return [(time, step, tag, value) for tag, value in found]

    def _remember(self, payload: bytes, step: int, tag: str) -> None:
        name = tag.encode()
        if len(name) > 100 or len(self.forms) >= MOST_FORMS:
            # Lengths below 128 take one byte each.
            return
        value = b"\x0a" + bytes([len(name)]) + name + b"\x15"
        entry = b"\x0a" + bytes([len(value) + 4]) + value
        form = b"\x2a" + bytes([len(entry) + 4]) + entry
        if not payload[:-4].endswith(form):
            return
        self.forms[form] = tag
        before = payload[9 : -4 - len(form)]
        if before[:1] == STEP_KEY:
            self.last, self.step = before, step


def _summary(content: int | bytes) -> Iterator[tuple[str, float]]:
    for number, entry in inside(content):
        if number == 1:
            told = _entry(entry)
            if told is not None:
                yield told


def _entry(entry: int | bytes) -> tuple[str, float] | None:
    tag, value = "", None
    for number, content in inside(entry):
        if number == 1:
            tag = text(content)
        elif number == 2 and isinstance(content, bytes):
            value = _F32.unpack(content)[0]
        elif number == 8:
            value = _tensor(content)
    return None if value is None else (tag, value)


def _tensor(content: int | bytes) -> float | None:
    """The one number of a tensor without dimensions; None of any other."""
    kind, value = 0, None
    for number, part in inside(content):
        if number == 1 and isinstance(part, int):
            kind = part
        elif number == _SHAPE and any(dimension == 2 for dimension, _ in inside(part)):
            return None
        elif number == _TENSOR_CONTENT and isinstance(part, bytes) and kind in _CONTENT:
            value = float(_CONTENT[kind].unpack(part)[0])
        elif number in (_FLOATS, _DOUBLES) and isinstance(part, bytes):
            value = (_F32 if number == _FLOATS else _TIME).unpack(part)[0]
        elif number in _INTEGERS:
            value = float(signed(_integer(part)))
        elif number == _HALVES:
            value = _half(_integer(part), kind)
    return value


def _integer(part: int | bytes) -> int:
    return part if isinstance(part, int) else varint(part, 0)[0]


def _half(bits: int, kind: int) -> float | None:
    if kind == BFLOAT16:
        return float(_F32.unpack((bits << 16 & 0xFFFF_FFFF).to_bytes(4, "little"))[0])
    two = (bits & 0xFFFF).to_bytes(2, "little")
    return float(_CONTENT[HALF].unpack(two)[0]) if kind == HALF else None
