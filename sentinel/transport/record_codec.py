"""Encodes records as ring payloads and decodes them.

STEP values are sent as one compiled struct per set of names. The names are sent once as JSON, and
again at intervals, so that a reader that was overrun can resume. All other records are JSON. Names
are sent as logged; the reader maps them to signals.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from json import dumps, loads
from typing import Any, NamedTuple

from sentinel.model.record import Event, Record

SCHEMA_KIND, VALUES_KIND, EVENT_KIND = b"N", b"V", b"T"
VALUES_HEADER_FORMAT = "@cIqqd"
_VALUES_HEADER = struct.Struct(VALUES_HEADER_FORMAT)
RESEND_SCHEMA_AFTER_BYTES = 1 << 20
"""Bytes after which a set of names is sent again."""
NAMES_PER_RING = 16
"""How often a set of names that is in use is in a full ring."""
MAX_SCHEMAS = 1024
"""Sets of names that a reader stores; the oldest are discarded beyond this number."""


DECODE_ERRORS = (
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
)
"""What decoding raises on bytes that are damaged."""


def names_interval(capacity: int) -> int:
    """Bytes after which names are sent again in a ring of that capacity."""
    return capacity // NAMES_PER_RING


class StepStamp(NamedTuple):
    """The trainer's step, the rank's own count of steps, and seconds since the epoch."""

    step: int
    step_index: int
    time: float


class PayloadError(ValueError):
    """A payload that is not a record."""


class UnknownSchemaError(PayloadError):
    """Values whose names were lost in an overrun; the names are sent again at intervals."""


@dataclass(slots=True)
class NameSchema:
    """A set of names, and the function that packs their values."""

    number: int
    names: tuple[str, ...]
    pack: Callable[..., bytes]
    resend_at_bytes: int = -1
    """The names are sent again once this many bytes have been sent."""


@dataclass
class RecordEncoder:
    """Encodes records and passes the payloads to `write`.

    `resend_after_bytes` is how many bytes may pass before names are sent again; it must be well
    below the ring's capacity.
    """

    write: Callable[[bytes], None]
    resend_after_bytes: int = RESEND_SCHEMA_AFTER_BYTES
    bytes_sent: int = 0
    _schemas: dict[tuple[str, ...], NameSchema] = field(default_factory=dict)
    _last_number: int = 0

    def schema_for(self, names: tuple[str, ...]) -> NameSchema:
        """The schema of these names in this order; callers reuse it."""
        known = self._schemas.get(names)
        if known is None:
            if len(self._schemas) >= MAX_SCHEMAS // 2:
                self._schemas.clear()
            self._last_number += 1
            pack = struct.Struct(f"{VALUES_HEADER_FORMAT}{len(names)}d").pack
            known = NameSchema(self._last_number, names, pack)
            self._schemas[names] = known
        return known

    def write_values(self, schema: NameSchema, stamp: StepStamp, values: Sequence[float]) -> None:
        """Send one STEP record of numbers, in the order of the schema's names."""
        if self.bytes_sent > schema.resend_at_bytes:
            names = dumps([schema.number, schema.names], separators=(",", ":"))
            self._send(SCHEMA_KIND + names.encode())
            schema.resend_at_bytes = self.bytes_sent + self.resend_after_bytes
        payload = schema.pack(VALUES_KIND, schema.number, *stamp, *values)
        self.bytes_sent += len(payload)
        self.write(payload)

    def write_event(
        self,
        event: Event,
        stamp: StepStamp,
        values: Mapping[str, float] | None = None,
        attributes: Mapping[str, str] | None = None,
    ) -> None:
        """Send one record of any event, with attributes."""
        body = [event.value, *stamp, dict(values or {}), dict(attributes or {})]
        self._send(EVENT_KIND + dumps(body, separators=(",", ":")).encode())

    def _send(self, payload: bytes) -> None:
        self.bytes_sent += len(payload)
        self.write(payload)


@dataclass
class RecordDecoder:
    """Decodes the payloads of one ring. `schemas` are the known sets of names, by number as text.

    Store `schemas` with the cursor and pass them back after a restart, since the writer sends them
    only at intervals.
    """

    run: str
    attempt: int
    rank: int
    schemas: dict[str, list[str]] = field(default_factory=dict)
    sequence: int = 0
    """Sequence number of the frame being decoded."""

    def decode(self, payload: bytes, sequence: int = 0) -> Record | None:
        """The record, or None for a payload that only holds names.

        `sequence` is the number of the payload's frame. Raises UnknownSchemaError if the names are
        not known, PayloadError for anything else that is not a record.
        """
        kind = payload[:1]
        self.sequence = sequence
        try:
            if kind == VALUES_KIND:
                return self._decode_values(payload)
            if kind == EVENT_KIND:
                return self._decode_event(loads(payload[1:]))
            if kind == SCHEMA_KIND:
                self._add_schema(loads(payload[1:]))
                return None
        except DECODE_ERRORS as error:
            if isinstance(error, PayloadError):
                raise
            raise PayloadError(f"A payload of {len(payload)} bytes is damaged.") from error
        raise PayloadError(f"A payload of {len(payload)} bytes has an unknown kind.")

    def learn_names(self, payload: bytes) -> None:
        """Take over the names of a later payload, if it holds any that are not known."""
        if payload[:1] == SCHEMA_KIND:
            with suppress(*DECODE_ERRORS):
                number, names = loads(payload[1:])
                if str(int(number)) not in self.schemas:
                    self._add_schema([number, names])

    def _decode_values(self, payload: bytes) -> Record:
        _, number, step, step_index, now = _VALUES_HEADER.unpack_from(payload)
        names = self.schemas.get(str(number))
        if names is None:
            raise UnknownSchemaError(f"The names of set {number} were lost.")
        # The values end the payload, after the struct's padding.
        values = struct.unpack_from(f"@{len(names)}d", payload, len(payload) - 8 * len(names))
        return Record(
            run=self.run,
            rank=self.rank,
            step=step,
            time=now,
            values=dict(zip(names, values, strict=True)),
            attempt=self.attempt,
            step_index=step_index,
            sequence=self.sequence,
        )

    def _decode_event(self, body: list[Any]) -> Record:
        event, step, step_index, now, values, attributes = body
        return Record(
            run=self.run,
            rank=self.rank,
            step=_checked_int64(step),
            time=float(now),
            event=Event(event),
            values={str(name): float(value) for name, value in values.items()},
            attributes={str(name): str(value) for name, value in attributes.items()},
            attempt=self.attempt,
            step_index=_checked_int64(step_index),
            sequence=self.sequence,
        )

    def _add_schema(self, body: list[Any]) -> None:
        number, names = body
        self.schemas[str(int(number))] = [str(name) for name in names]
        while len(self.schemas) > MAX_SCHEMAS:
            del self.schemas[next(iter(self.schemas))]


def _checked_int64(number: Any) -> int:
    """The number as an int that fits 64 bits. Raises PayloadError."""
    count = int(number)
    if not -(1 << 63) <= count < 1 << 63:
        raise PayloadError("A step does not fit 64 bits.")
    return count
