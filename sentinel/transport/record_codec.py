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

_SCHEMA, VALUES, _TEXT = b"N", b"V", b"T"
HEAD = "@cIqqd"
_VALUES_HEAD = struct.Struct(HEAD)
AGAIN_AFTER = 1 << 20
"""Bytes after which names are sent again."""
SCHEMAS_KEPT = 1024
"""Sets of names a reader remembers; a rank that makes up more has its oldest forgotten."""


_DAMAGE = (
    ValueError,
    TypeError,
    AttributeError,
    ArithmeticError,
    RecursionError,
    struct.error,
)


class Moment(NamedTuple):
    """When: the trainer's step, the rank's own count of steps, seconds since the epoch."""

    step: int
    beat: int
    time: float


class PayloadError(ValueError):
    """Bytes that are not a record."""


class UnknownSchemaError(PayloadError):
    """Numbers whose names were lost with an overrun; they are sent again before long."""


@dataclass(slots=True)
class Schema:
    """A set of names, and the struct that packs their values."""

    number: int
    names: tuple[str, ...]
    pack: Callable[..., bytes]
    again_at: int = -1
    """When so many bytes have been sent, the names are sent again."""


@dataclass
class Packer:
    """Writer's side: turns values into payloads and hands them to `write`.

    `again_after` is how many bytes may pass before names are sent again: well below the ring's
    capacity.
    """

    write: Callable[[bytes], None]
    again_after: int = AGAIN_AFTER
    sent: int = 0
    _schemas: dict[tuple[str, ...], Schema] = field(default_factory=dict)
    _last_number: int = 0

    def schema(self, names: tuple[str, ...]) -> Schema:
        """The schema of these names in this order; keep it and use it again."""
        known = self._schemas.get(names)
        if known is None:
            if len(self._schemas) >= SCHEMAS_KEPT // 2:
                self._schemas.clear()
            self._last_number += 1
            pack = struct.Struct(f"{HEAD}{len(names)}d").pack
            known = Schema(self._last_number, names, pack)
            self._schemas[names] = known
        return known

    def values(self, schema: Schema, moment: Moment, values: Sequence[float]) -> None:
        """Send one STEP record of numbers, in the order of the schema's names."""
        if self.sent > schema.again_at:
            names = json.dumps([schema.number, schema.names], separators=(",", ":"))
            self._send(_SCHEMA + names.encode())
            schema.again_at = self.sent + self.again_after
        payload = schema.pack(VALUES, schema.number, *moment, *values)
        self.sent += len(payload)
        self.write(payload)

    def text(
        self,
        event: Event,
        moment: Moment,
        values: Mapping[str, float] | None = None,
        facts: Mapping[str, str] | None = None,
    ) -> None:
        """Send one record of any event, with facts."""
        body = [event.value, *moment, dict(values or {}), dict(facts or {})]
        self._send(_TEXT + json.dumps(body, separators=(",", ":")).encode())

    def _send(self, payload: bytes) -> None:
        self.sent += len(payload)
        self.write(payload)


@dataclass
class Unpacker:
    """Reader's side, one per ring. `names` are the sets of names learnt so far, by number as text.

    Keep `names` beside the cursor and give them back after a restart: they are not sent at once.
    """

    run: str
    attempt: int
    rank: int
    names: dict[str, list[str]] = field(default_factory=dict)
    sequence: int = 0
    """Number of the frame under way."""

    def unpack(self, payload: bytes, sequence: int = 0) -> Record | None:
        """The record, or None for a payload that only brings names; `sequence` is its frame's.

        Raises UnknownSchemaError where the names are not known, PayloadError for anything that is
        not a record.
        """
        kind = payload[:1]
        self.sequence = sequence
        try:
            if kind == VALUES:
                return self._values(payload)
            if kind == _TEXT:
                return self._text(json.loads(payload[1:]))
            if kind == _SCHEMA:
                self._learn(json.loads(payload[1:]))
                return None
        except _DAMAGE as error:
            if isinstance(error, PayloadError):
                raise
            raise PayloadError(f"A payload of {len(payload)} bytes is damaged.") from error
        raise PayloadError(f"A payload of {len(payload)} bytes has an unknown kind.")

    def _values(self, payload: bytes) -> Record:
        _, number, step, beat, now = _VALUES_HEAD.unpack_from(payload)
        names = self.names.get(str(number))
        if names is None:
            raise UnknownSchemaError(f"The names of set {number} were lost.")
        # Doubles stand at the end of the payload, behind whatever the struct left for alignment.
        values = struct.unpack_from(f"@{len(names)}d", payload, len(payload) - 8 * len(names))
        return self._record(Moment(step, beat, now), values=dict(zip(names, values, strict=True)))

    def _text(self, body: list[Any]) -> Record:
        event, step, beat, now, values, facts = body
        numbers = {str(name): float(value) for name, value in values.items()}
        words = {str(name): str(value) for name, value in facts.items()}
        moment = Moment(_counted(step), _counted(beat), float(now))
        return self._record(moment, Event(event), numbers, words)

    def _learn(self, body: list[Any]) -> None:
        number, names = body
        self.names[str(int(number))] = [str(name) for name in names]
        while len(self.names) > SCHEMAS_KEPT:
            del self.names[next(iter(self.names))]

    def _record(
        self,
        moment: Moment,
        event: Event = Event.STEP,
        values: dict[str, float] | None = None,
        facts: dict[str, str] | None = None,
    ) -> Record:
        return Record(
            run=self.run,
            rank=self.rank,
            step=moment.step,
            time=moment.time,
            event=event,
            values=values or {},
            facts=facts or {},
            attempt=self.attempt,
            beat=moment.beat,
            sequence=self.sequence,
        )


def _counted(number: Any) -> int:
    """A count as it is stored and sent: of 64 bits."""
    count = int(number)
    if not -(1 << 63) <= count < 1 << 63:
        raise PayloadError("A step is beyond 64 bits.")
    return count
