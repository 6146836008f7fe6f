"""Parcel: records of many ranks as bytes, numbered so that what comes twice, or never, is seen.

Agents hand them to each other, and keep in them what they may have to read again.

A step's numbers travel as one struct, its rank and the names of its values as two numbers that
were explained once: 34 bytes, and 8 for each value. All else travels as JSON. Explanations hold for
a whole correspondence, from a `Writer` to its one `Reader`, so parcels are read in their order.

    head      number of the parcel, first and last row of the spool, sender's clock in seconds, size
              of the explanations
    JSON      [[attempt, rank] of new senders, [name, ...] of new sets of names]
    records   sender, set of names (0: JSON follows), sequence, step, beat, time; then the values,
              or the length of the JSON and [event, values, facts]
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from sentinel.record import Event, Record

HEAD = struct.Struct("<IQQdI")
RECORD = struct.Struct("<IHIqqd")
_LENGTH = struct.Struct("<I")
MOST_NAMES = 4096
"""Sets of names that are explained in one correspondence; numbers under others travel as JSON."""


class ParcelError(ValueError):
    """Bytes that are not the next parcel: `reason` is damaged, repeated or gap."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason


_NO_FACTS: Mapping[str, str] = {}
_DAMAGE = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    struct.error,
)


@dataclass(frozen=True, slots=True)
class Parcel:
    """What came in one piece: rows `first` to `last` of the sender's spool; none if `last` is less.

    `clock` is the sender's time when it was written, in seconds since the epoch.
    """

    number: int
    first: int
    last: int
    clock: float
    records: Sequence[Record]


@dataclass
class Writer:
    """The sender's side of one correspondence."""

    written: int = 0
    _senders: dict[tuple[int, int], int] = field(default_factory=dict)
    _names: dict[tuple[str, ...], int] = field(default_factory=dict)

    def write(self, records: Sequence[Record], first: int, last: int, clock: float) -> bytes:
        """The next parcel."""
        senders, names = len(self._senders), len(self._names)
        body = b"".join(map(self._record, records))
        new = [[*self._senders][senders:], [*self._names][names:]]
        told = json.dumps(new, separators=(",", ":")).encode() if any(new) else b""
        self.written += 1
        return HEAD.pack(self.written, first, last, clock, len(told)) + told + body

    def _record(self, record: Record) -> bytes:
        key = record.attempt, record.rank
        sender = self._senders.setdefault(key, len(self._senders))
        names = self._known(record)
        place = sender, names, record.sequence & 0xFFFFFFFF, record.step, record.beat, record.time
        if names:
            numbers = record.values.values()
            return RECORD.pack(*place) + struct.pack(f"<{len(numbers)}d", *numbers)
        told = [record.event.value, dict(record.values), dict(record.facts)]
        text = json.dumps(told, separators=(",", ":")).encode()
        return RECORD.pack(*place) + _LENGTH.pack(len(text)) + text

    def _known(self, record: Record) -> int:
        """The number of its set of names, from 1; 0 where it has to travel as JSON."""
        if record.event is not Event.STEP or record.facts:
            return 0
        names = tuple(record.values)
        known = self._names.get(names)
        if known is None and len(self._names) < MOST_NAMES:
            known = self._names[names] = len(self._names) + 1
        return known or 0


@dataclass
class Reader:
    """The receiver's side. Records it reads are of `run`."""

    run: str
    read: int = 0
    _senders: list[tuple[int, int]] = field(default_factory=list)
    _names: list[tuple[tuple[str, ...], struct.Struct]] = field(default_factory=list)

    def parcel(self, data: bytes) -> Parcel:
        """The next parcel. Raises ParcelError for one that is not the next, or not a parcel."""
        try:
            number, first, last, clock, size = HEAD.unpack_from(data)
            if number == self.read + 1:
                self._learn(data[HEAD.size : HEAD.size + size])
                records = list(self._records(data, HEAD.size + size))
        except _DAMAGE as error:
            raise ParcelError("damaged", f"{type(error).__name__} in a parcel.") from error
        if number != self.read + 1:
            reason = "repeated" if number <= self.read else "gap"
            raise ParcelError(reason, f"Parcel {number} came after {self.read}.")
        self.read = number
        return Parcel(number, first, last, clock, records)

    def _learn(self, told: bytes) -> None:
        senders, sets = json.loads(told) if told else ((), ())
        self._senders += [(int(attempt), int(rank)) for attempt, rank in senders]
        for names in sets:
            self._names.append((tuple(map(str, names)), struct.Struct(f"<{len(names)}d")))

    def _records(self, data: bytes, at: int) -> Iterator[Record]:
        while at < len(data):
            sender, names, sequence, step, beat, time = RECORD.unpack_from(data, at)
            attempt, rank = self._senders[sender]
            at += RECORD.size
            if names:
                keys, numbers = self._names[names - 1]
                event, facts = Event.STEP, _NO_FACTS
                values = dict(zip(keys, numbers.unpack_from(data, at), strict=True))
                at += numbers.size
            else:
                (size,) = _LENGTH.unpack_from(data, at)
                at += _LENGTH.size + size
                event, values, facts = _told(data[at - size : at])
            yield Record(
                run=self.run,
                rank=rank,
                step=step,
                time=time,
                event=event,
                values=values,
                facts=facts,
                attempt=attempt,
                beat=beat,
                sequence=sequence,
            )


def _told(text: bytes) -> tuple[Event, dict[str, float], Mapping[str, str]]:
    event, values, facts = json.loads(text)
    numbers = {str(name): float(value) for name, value in values.items()}
    return Event(event), numbers, {str(name): str(fact) for name, fact in facts.items()}


def alone(records: Sequence[Record]) -> bytes:
    """These records as a parcel that stands for itself."""
    return Writer().write(records, 0, 0, 0.0)


def rows(data: bytes, run: str) -> Sequence[Record]:
    """The records of a parcel that stands for itself, as `alone` wrote it. Raises ParcelError."""
    return Reader(run).parcel(data).records
