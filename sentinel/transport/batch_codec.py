"""Parcel: records of many ranks as bytes, numbered so that what comes twice, or never, is seen.

Agents hand them to each other, and keep in them what they may have to read again.

What ranks say of one step in the same words travels as one struct, each rank and the names of the
values as numbers that were explained once: 22 bytes, 16 for each rank, or 12 where the same ranks
said what came before it, and 8 for each value. All else travels as JSON, a TICK as what is new
since the last one. Explanations hold for a whole correspondence, from a `Writer` to its one
`Reader`, so parcels are read in their order.

    head      number of the parcel, first and last row of the spool, sender's clock in seconds, size
              of the explanations
    JSON      [[attempt, rank] of new senders, [name, ...] of new sets of names]
    entries   set of names (0: JSON follows), number of ranks, step, beat; then the senders, unless
              they are the last ones AGAIN, their sequences, times and values; or sender, sequence,
              time, length of the JSON, and [event, values, facts]
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from itertools import chain
from typing import Any, TypeVar

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import Entry, Sheet, alike, is_plain
from sentinel.transport.heartbeat_delta import News

HEAD = struct.Struct("<IQQdI")
ENTRY = struct.Struct("<HIqq")
ALONE = struct.Struct("<IIdI")
MOST_NAMES = 4096
"""Sets of names that are explained in one correspondence; numbers under others travel as JSON."""
AGAIN = 1 << 15
"""Added to a set of names, where its senders are those of the last struct, in their order."""

Names = tuple[str, ...]
Circle = tuple[int, tuple[int, ...]]
"""An attempt, and ranks in it."""
Thing = TypeVar("Thing")


class ParcelError(ValueError):
    """Bytes that are not the next parcel: `reason` is damaged, repeated or gap."""

    def __init__(self, reason: str, what: str) -> None:
        super().__init__(what)
        self.reason = reason


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
    entries: Sequence[Entry]


@dataclass
class Writer:
    """The sender's side of one correspondence."""

    written: int = 0
    _senders: dict[tuple[int, int], int] = field(default_factory=dict)
    _names: dict[Names, int] = field(default_factory=dict)
    _circle: Circle = 0, ()
    _news: News = field(default_factory=News)

    def write(self, entries: Sequence[Entry], first: int, last: int, clock: float) -> bytes:
        """The next parcel."""
        senders, names = len(self._senders), len(self._names)
        body = b"".join([piece for entry in entries for piece in self._packed(entry)])
        new = [[*self._senders][senders:], [*self._names][names:]]
        told = json.dumps(new, separators=(",", ":")).encode() if any(new) else b""
        self.written += 1
        return HEAD.pack(self.written, first, last, clock, len(told)) + told + body

    def _packed(self, entry: Entry) -> Iterator[bytes]:
        if isinstance(entry, Record) and not is_plain(entry):
            yield self._text(entry)
            return
        sheet = entry if isinstance(entry, Sheet) else alike([entry])
        if names := self._known(sheet.names):
            yield self._table(sheet, names)
        else:
            yield from map(self._text, sheet.records())

    def _table(self, sheet: Sheet, names: int) -> bytes:
        circle, ranks = (sheet.attempt, sheet.ranks), len(sheet.ranks)
        senders: list[int] = []
        if circle == self._circle:
            names += AGAIN
        else:
            senders = [self._number(sheet.attempt, rank) for rank in sheet.ranks]
        sequences = [sequence & 0xFFFFFFFF for sequence in sheet.sequences]
        numbers = chain(senders, sequences, sheet.times, *sheet.rows)
        head = ENTRY.pack(names, ranks, sheet.step, sheet.beat)
        body = struct.pack(_layout(len(senders), ranks, len(sheet.names)), *numbers)
        self._circle = circle
        return head + body

    def _text(self, record: Record) -> bytes:
        told: list[object] = [dict(record.values), dict(record.facts)]
        if record.event is Event.TICK:
            told = self._news.of(record)
        text = json.dumps([record.event.value, *told], separators=(",", ":")).encode()
        sender = self._number(record.attempt, record.rank)
        alone = ALONE.pack(sender, record.sequence & 0xFFFFFFFF, record.time, len(text))
        return ENTRY.pack(0, 1, record.step, record.beat) + alone + text

    def _number(self, attempt: int, rank: int) -> int:
        return self._senders.setdefault((attempt, rank), len(self._senders))

    def _known(self, names: Names) -> int:
        """The number of that set of names, from 1; 0 where it has to travel as JSON."""
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
    _names: list[Names] = field(default_factory=list)
    _circle: Circle = 0, ()
    _news: News = field(default_factory=News)

    def parcel(self, data: bytes) -> Parcel:
        """The next parcel. Raises ParcelError for one that is not the next, or not a parcel."""
        try:
            number, first, last, clock, size = HEAD.unpack_from(data)
            if number == self.read + 1:
                self._learn(data[HEAD.size : HEAD.size + size])
                entries = list(self._entries(data, HEAD.size + size))
        except _DAMAGE as error:
            raise ParcelError("damaged", f"{type(error).__name__} in a parcel.") from error
        if number != self.read + 1:
            reason = "repeated" if number <= self.read else "gap"
            raise ParcelError(reason, f"Parcel {number} came after {self.read}.")
        self.read = number
        return Parcel(number, first, last, clock, entries)

    def _learn(self, told: bytes) -> None:
        senders, sets = json.loads(told) if told else ((), ())
        self._senders += [(_short(attempt), _short(rank)) for attempt, rank in senders]
        self._names += [_distinct(map(str, names)) for names in sets]

    def _entries(self, data: bytes, at: int) -> Iterator[Entry]:
        while at < len(data):
            names, count, step, beat = ENTRY.unpack_from(data, at)
            at += ENTRY.size
            if names:
                known = self._names[(names - 1) % AGAIN]
                told = 0 if names & AGAIN else count
                layout = _layout(told, count, len(known))
                numbers = struct.unpack_from(layout, data, at)
                at += struct.calcsize(layout)
                self._meet(numbers[:told], count)
                yield self._sheet(known, step, beat, numbers[told:])
            else:
                sender, sequence, time, size = ALONE.unpack_from(data, at)
                at += ALONE.size + size
                yield self._record(data[at - size : at], step, beat, (sender, sequence, time))

    def _meet(self, told: Sequence[int], count: int) -> None:
        """So many ranks speak next: these senders, or if there are none the last ones again."""
        if told:
            senders = [self._senders[number] for number in told]
            (attempt,) = {attempt for attempt, _ in senders}
            self._circle = attempt, _ranks(senders)
        if not count or len(self._circle[1]) != count:
            raise ValueError("Others spoke last.")

    def _sheet(self, names: Names, step: int, beat: int, numbers: Sequence[Any]) -> Entry:
        attempt, ranks = self._circle
        count = len(ranks)
        starts = [2 * count + at * len(names) for at in range(count)]
        sheet = Sheet(
            run=self.run,
            attempt=attempt,
            step=step,
            beat=beat,
            names=names,
            ranks=ranks,
            times=tuple(numbers[count : 2 * count]),
            sequences=tuple(numbers[:count]),
            rows=tuple([tuple(numbers[at : at + len(names)]) for at in starts]),
        )
        return sheet if count > 1 else next(sheet.records())

    def _record(self, text: bytes, step: int, beat: int, head: tuple[int, int, float]) -> Record:
        word, *told = json.loads(text)
        sender, sequence, time = head
        attempt, rank = self._senders[sender]
        event = Event(word)
        values, facts = self._news.taken(*told) if event is Event.TICK else told
        return Record(
            run=self.run,
            rank=rank,
            step=step,
            time=time,
            event=event,
            values={str(name): float(value) for name, value in values.items()},
            facts={str(name): str(fact) for name, fact in facts.items()},
            attempt=attempt,
            beat=beat,
            sequence=sequence,
        )


def _layout(senders: int, ranks: int, names: int) -> str:
    """Senders and sequences, then times and values."""
    return f"<{senders + ranks}I{ranks * (1 + names)}d"


def _ranks(senders: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    ranks = _distinct(rank for _, rank in senders)
    if WHOLE_RUN in ranks:
        raise ValueError("The run is no rank.")
    return ranks


def _short(told: object) -> int:
    """A number of 64 bits."""
    if not isinstance(told, int) or told.bit_length() > 63:
        raise ValueError("It is no attempt, and no rank.")
    return told


def _distinct(things: Iterable[Thing]) -> tuple[Thing, ...]:
    told = tuple(things)
    if len({*told}) < len(told):
        raise ValueError("It is told twice.")
    return told


def alone(entries: Sequence[Entry]) -> bytes:
    """These entries as a parcel that stands for itself."""
    return Writer().write(entries, 0, 0, 0.0)


def rows(data: bytes, run: str) -> Sequence[Entry]:
    """What is in a parcel that stands for itself, as `alone` wrote it. Raises ParcelError."""
    return Reader(run).parcel(data).entries
