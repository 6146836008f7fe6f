"""Pack: records as bytes, and back.

Numbers travel as one compiled struct per set of names; the names travel once as JSON, and again
every so often, so that a reader who was overrun finds its feet. Everything rare travels as JSON.
Names are sent as they were logged: turning them into signals is the reader's work.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from sentinel.model.record import Event, Record

SCHEMA_KIND, VALUES_KIND, EVENT_KIND = b"N", b"V", b"T"
VALUES_HEADER_FORMAT = "@cIqqd"
_VALUES_HEADER = struct.Struct(VALUES_HEADER_FORMAT)
RESEND_SCHEMA_AFTER_BYTES = 1 << 20
"""Bytes after which names are sent again."""
MAX_SCHEMAS = 1024
"""Sets of names a reader remembers; a rank that makes up more has its oldest forgotten."""


_DECODE_ERRORS = (
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
)


class StepStamp(NamedTuple):
    """When: the trainer's step, the rank's own count of steps, seconds since the epoch."""

    step: int
    step_index: int
    time: float


class PayloadError(ValueError):
    """Bytes that are not a record."""


class UnknownSchemaError(PayloadError):
    """Numbers whose names were lost with an overrun; they are sent again before long."""


@dataclass(slots=True)
class NameSchema:
    """A set of names, and the struct that packs their values."""

    number: int
    names: tuple[str, ...]
    pack: Callable[..., bytes]
    resend_at_bytes: int = -1
    """When so many bytes have been sent, the names are sent again."""


@dataclass
class RecordEncoder:
    """Writer's side: turns values into payloads and hands them to `write`.

    `again_after` is how many bytes may pass before names are sent again: well below the ring's
    capacity.
    """

    write: Callable[[bytes], None]
    resend_after_bytes: int = RESEND_SCHEMA_AFTER_BYTES
    bytes_sent: int = 0
    _schemas: dict[tuple[str, ...], NameSchema] = field(default_factory=dict)
    _last_number: int = 0

    def schema_for(self, names: tuple[str, ...]) -> NameSchema:
        """The schema of these names in this order; keep it and use it again."""
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
            names = json.dumps([schema.number, schema.names], separators=(",", ":"))
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
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """Send one record of any event, with facts."""
        body = [event.value, *stamp, dict(values or {}), dict(facts or {})]
        self._send(EVENT_KIND + json.dumps(body, separators=(",", ":")).encode())

    def _send(self, payload: bytes) -> None:
        self.bytes_sent += len(payload)
        self.write(payload)


@dataclass
class RecordDecoder:
    """Reader's side, one per ring. `names` are the sets of names learnt so far, by number as text.

    Keep `names` beside the cursor and give them back after a restart: they are not sent at once.
    """

    run: str
    attempt: int
    rank: int
    schemas: dict[str, list[str]] = field(default_factory=dict)
    sequence: int = 0
    """Number of the frame under way."""

    def decode(self, payload: bytes, sequence: int = 0) -> Record | None:
        """The record, or None for a payload that only brings names; `sequence` is its frame's.

        Raises UnknownSchemaError where the names are not known, PayloadError for anything that is
        not a record.
        """
        kind = payload[:1]
        self.sequence = sequence
        try:
            if kind == VALUES_KIND:
                return self._decode_values(payload)
            if kind == EVENT_KIND:
                return self._decode_event(json.loads(payload[1:]))
            if kind == SCHEMA_KIND:
                self._add_schema(json.loads(payload[1:]))
                return None
        except _DECODE_ERRORS as error:
            if isinstance(error, PayloadError):
                raise
            raise PayloadError(f"A payload of {len(payload)} bytes is damaged.") from error
        raise PayloadError(f"A payload of {len(payload)} bytes has an unknown kind.")

    def _decode_values(self, payload: bytes) -> Record:
        _, number, step, beat, now = _VALUES_HEADER.unpack_from(payload)
        names = self.schemas.get(str(number))
        if names is None:
            raise UnknownSchemaError(f"The names of set {number} were lost.")
        # Doubles stand at the end of the payload, behind whatever the struct left for alignment.
        values = struct.unpack_from(f"@{len(names)}d", payload, len(payload) - 8 * len(names))
        return self._build_record(
            StepStamp(step, beat, now), values=dict(zip(names, values, strict=True))
        )

    def _decode_event(self, body: list[Any]) -> Record:
        event, step, beat, now, values, facts = body
        numbers = {str(name): float(value) for name, value in values.items()}
        words = {str(name): str(value) for name, value in facts.items()}
        moment = StepStamp(_checked_int64(step), _checked_int64(beat), float(now))
        return self._build_record(moment, Event(event), numbers, words)

    def _add_schema(self, body: list[Any]) -> None:
        number, names = body
        self.schemas[str(int(number))] = [str(name) for name in names]
        while len(self.schemas) > MAX_SCHEMAS:
            del self.schemas[next(iter(self.schemas))]

    def _build_record(
        self,
        stamp: StepStamp,
        event: Event = Event.STEP,
        values: dict[str, float] | None = None,
        facts: dict[str, str] | None = None,
    ) -> Record:
        return Record(
            run=self.run,
            rank=self.rank,
            step=stamp.step,
            time=stamp.time,
            event=event,
            values=values or {},
            attributes=facts or {},
            attempt=self.attempt,
            step_index=stamp.step_index,
            sequence=self.sequence,
        )


def _checked_int64(number: Any) -> int:
    """A count as it is stored and sent: of 64 bits."""
    count = int(number)
    if not -(1 << 63) <= count < 1 << 63:
        raise PayloadError("A step is beyond 64 bits.")
    return count
