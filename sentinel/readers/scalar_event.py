"""Scalar event: the numbers in one TensorBoard event, told by `simple_value` or a 0-d tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct, error

from sentinel.readers.protobuf import decode_text, decode_varint, fields, subfields, to_int64

MAX_TEMPLATES = 65536
STEP_FIELD_KEY = b"\x10"
DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64, DT_HALF, DT_BFLOAT16 = 1, 2, 3, 9, 19, 14
"""Types of a tensor that hold a number."""

_F64 = Struct("<d")
_F32 = Struct("<f")
_TENSOR_STRUCTS = {
    DT_FLOAT: _F32, DT_DOUBLE: _F64, DT_INT32: Struct("<i"), DT_INT64: Struct("<q"), DT_HALF: Struct("<e"),
}  # fmt: skip
_SHAPE_FIELD, _TENSOR_CONTENT_FIELD, _FLOAT_FIELD, _DOUBLE_FIELD, _HALF_FIELD = 2, 4, 5, 6, 13
_INTEGER_FIELDS = (7, 10)


Scalar = tuple[float, int, str, float]
"""Seconds since the epoch, step, tag, value."""


@dataclass
class ScalarDecoder:
    """Takes events apart. Most are alike but for time, step and value, and are known by the rest.

    `forms` are the bytes between step and value, to the tag in them. `last` are the bytes of the
    step before, `step`: what is written together has one.
    """

    templates: dict[bytes, str] = field(default_factory=dict)
    last_step_bytes: bytes = b"?"
    last_step: int = 0

    def decode(self, payload: bytes) -> list[Scalar]:
        """The numbers of an event. Raises ValueError if it is damaged."""
        if payload[:1] == b"\x09" and payload.startswith(self.last_step_bytes, 9):
            tag = self.templates.get(payload[9 + len(self.last_step_bytes) : -4])
            if tag is not None:
                time = _F64.unpack_from(payload, 1)[0]
                return [(time, self.last_step, tag, _F32.unpack(payload[-4:])[0])]
        try:
            return self._decode_fields(payload)
        except error as wrong:
            raise ValueError(str(wrong)) from None

    def _decode_fields(self, payload: bytes) -> list[Scalar]:
        time, step = 0.0, 0
        found: list[tuple[str, float]] = []
        for number, content in fields(payload):
            if number == 1 and isinstance(content, bytes):
                time = _F64.unpack(content)[0]
            elif number == 2 and isinstance(content, int):
                step = to_int64(content)
            elif number == 5:
                found += _decode_summary(content)
        if len(found) == 1:
            self._cache_template(payload, step, found[0][0])
        return [(time, step, tag, value) for tag, value in found]

    def _cache_template(self, payload: bytes, step: int, tag: str) -> None:
        name = tag.encode()
        if len(name) > 100 or len(self.templates) >= MAX_TEMPLATES:
            # Lengths below 128 take one byte each.
            return
        value = b"\x0a" + bytes([len(name)]) + name + b"\x15"
        entry = b"\x0a" + bytes([len(value) + 4]) + value
        form = b"\x2a" + bytes([len(entry) + 4]) + entry
        if not payload[:-4].endswith(form):
            return
        self.templates[form] = tag
        before = payload[9 : -4 - len(form)]
        if before[:1] == STEP_FIELD_KEY:
            self.last_step_bytes, self.last_step = before, step


def _decode_summary(content: int | bytes) -> Iterator[tuple[str, float]]:
    for number, entry in subfields(content):
        if number == 1:
            told = _decode_value(entry)
            if told is not None:
                yield told


def _decode_value(entry: int | bytes) -> tuple[str, float] | None:
    tag, value = "", None
    for number, content in subfields(entry):
        if number == 1:
            tag = decode_text(content)
        elif number == 2 and isinstance(content, bytes):
            value = _F32.unpack(content)[0]
        elif number == 8:
            value = _decode_tensor(content)
    return None if value is None else (tag, value)


def _decode_tensor(content: int | bytes) -> float | None:
    """The one number of a tensor without dimensions; None of any other."""
    kind, value = 0, None
    for number, part in subfields(content):
        if number == 1 and isinstance(part, int):
            kind = part
        elif number == _SHAPE_FIELD and any(dimension == 2 for dimension, _ in subfields(part)):
            return None
        elif (
            number == _TENSOR_CONTENT_FIELD and isinstance(part, bytes) and kind in _TENSOR_STRUCTS
        ):
            value = float(_TENSOR_STRUCTS[kind].unpack(part)[0])
        elif number in (_FLOAT_FIELD, _DOUBLE_FIELD) and isinstance(part, bytes):
            value = (_F32 if number == _FLOAT_FIELD else _F64).unpack(part)[0]
        elif number in _INTEGER_FIELDS:
            value = float(to_int64(_to_integer(part)))
        elif number == _HALF_FIELD:
            value = _decode_half(_to_integer(part), kind)
    return value


def _to_integer(part: int | bytes) -> int:
    return part if isinstance(part, int) else decode_varint(part, 0)[0]


def _decode_half(bits: int, kind: int) -> float | None:
    if kind == DT_BFLOAT16:
        return float(_F32.unpack((bits << 16 & 0xFFFF_FFFF).to_bytes(4, "little"))[0])
    two = (bits & 0xFFFF).to_bytes(2, "little")
    return float(_TENSOR_STRUCTS[DT_HALF].unpack(two)[0]) if kind == DT_HALF else None
