"""Decodes the numbers in a TensorBoard event, stored as `simple_value` or as a 0-d tensor."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from struct import Struct, error

from sentinel.readers.protobuf import decode_text, decode_varint, fields, subfields, to_int64

MAX_TEMPLATES = 65536
STEP_FIELD_KEY = b"\x10"
DT_FLOAT, DT_DOUBLE, DT_INT32, DT_INT64, DT_HALF, DT_BFLOAT16 = 1, 2, 3, 9, 19, 14
"""Tensor types that hold a number."""

_F64 = Struct("<d")
_F32 = Struct("<f")
_TENSOR_STRUCTS = {
    DT_FLOAT: _F32,
    DT_DOUBLE: _F64,
    DT_INT32: Struct("<i"),
    DT_INT64: Struct("<q"),
    DT_HALF: Struct("<e"),
}
_SHAPE_FIELD, _TENSOR_CONTENT_FIELD, _FLOAT_FIELD, _DOUBLE_FIELD, _HALF_FIELD = 2, 4, 5, 6, 13
_INTEGER_FIELDS = (7, 10)


Scalar = tuple[float, int, str, float]
"""Seconds since the epoch, step, tag, value."""


@dataclass
class ScalarDecoder:
    """Decodes events. Most differ only in time, step and value, so the rest is cached.

    `templates` maps the bytes between step and value to the tag in them. `last_step_bytes` encode
    `last_step`, since events written together share their step.
    """

    templates: dict[bytes, str] = field(default_factory=dict)
    last_step_bytes: bytes = b"?"
    last_step: int = 0

    def decode(self, payload: bytes) -> list[Scalar]:
        """The numbers in an event. Raises ValueError if it is damaged."""
        if payload[:1] == b"\x09" and payload.startswith(self.last_step_bytes, 9):
            tag = self.templates.get(payload[9 + len(self.last_step_bytes) : -4])
            if tag is not None:
                time = _F64.unpack_from(payload, 1)[0]
                return [(time, self.last_step, tag, _F32.unpack(payload[-4:])[0])]
        try:
            return self._decode_fields(payload)
        except error as unpack_error:
            raise ValueError(str(unpack_error)) from None

    def _decode_fields(self, payload: bytes) -> list[Scalar]:
        time, step = 0.0, 0
        values: list[tuple[str, float]] = []
        for number, content in fields(payload):
            if number == 1 and isinstance(content, bytes):
                time = _F64.unpack(content)[0]
            elif number == 2 and isinstance(content, int):
                step = to_int64(content)
            elif number == 5:
                values += _decode_summary(content)
        if len(values) == 1:
            self._cache_template(payload, step, values[0][0])
        return [(time, step, tag, value) for tag, value in values]

    def _cache_template(self, payload: bytes, step: int, tag: str) -> None:
        name = tag.encode()
        if len(name) > 100 or len(self.templates) >= MAX_TEMPLATES:
            # The template assumes lengths below 128, which take one byte each.
            return
        value = b"\x0a" + bytes([len(name)]) + name + b"\x15"
        entry = b"\x0a" + bytes([len(value) + 4]) + value
        template = b"\x2a" + bytes([len(entry) + 4]) + entry
        if not payload[:-4].endswith(template):
            return
        self.templates[template] = tag
        step_bytes = payload[9 : -4 - len(template)]
        if step_bytes[:1] == STEP_FIELD_KEY:
            self.last_step_bytes, self.last_step = step_bytes, step


def _decode_summary(content: int | bytes) -> Iterator[tuple[str, float]]:
    for number, entry in subfields(content):
        if number == 1:
            value = _decode_value(entry)
            if value is not None:
                yield value


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
    """The number in a tensor without dimensions; None for any other tensor."""
    dtype, value = 0, None
    for number, part in subfields(content):
        if number == 1 and isinstance(part, int):
            dtype = part
        elif number == _SHAPE_FIELD and any(dimension == 2 for dimension, _ in subfields(part)):
            return None
        elif (
            number == _TENSOR_CONTENT_FIELD and isinstance(part, bytes) and dtype in _TENSOR_STRUCTS
        ):
            value = float(_TENSOR_STRUCTS[dtype].unpack(part)[0])
        elif number in (_FLOAT_FIELD, _DOUBLE_FIELD) and isinstance(part, bytes):
            value = (_F32 if number == _FLOAT_FIELD else _F64).unpack(part)[0]
        elif number in _INTEGER_FIELDS:
            value = float(to_int64(_to_integer(part)))
        elif number == _HALF_FIELD:
            value = _decode_half(_to_integer(part), dtype)
    return value


def _to_integer(part: int | bytes) -> int:
    return part if isinstance(part, int) else decode_varint(part, 0)[0]


def _decode_half(bits: int, dtype: int) -> float | None:
    if dtype == DT_BFLOAT16:
        return float(_F32.unpack((bits << 16 & 0xFFFF_FFFF).to_bytes(4, "little"))[0])
    raw = (bits & 0xFFFF).to_bytes(2, "little")
    return float(_TENSOR_STRUCTS[DT_HALF].unpack(raw)[0]) if dtype == DT_HALF else None
