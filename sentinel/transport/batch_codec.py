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
from sentinel.model.record_batch import RecordBatch, RecordOrBatch, is_batchable, make_batch
from sentinel.transport.heartbeat_delta import HeartbeatDelta

MESSAGE_HEADER = struct.Struct("<IQQdI")
ENTRY_HEADER = struct.Struct("<HIqq")
JSON_RECORD_HEADER = struct.Struct("<IIdI")
MAX_NAME_SETS = 4096
"""Sets of names that are explained in one correspondence; numbers under others travel as JSON."""
SAME_RANKS_FLAG = 1 << 15
"""Added to a set of names, where its senders are those of the last struct, in their order."""

Names = tuple[str, ...]
AttemptRanks = tuple[int, tuple[int, ...]]
"""An attempt, and ranks in it."""
Item = TypeVar("Item")


class BatchMessageError(ValueError):
    """Bytes that are not the next parcel: `reason` is damaged, repeated or gap."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


_DECODE_ERRORS = (
    ValueError,
    TypeError,
    ArithmeticError,
    LookupError,
    AttributeError,
    RecursionError,
    struct.error,
)


@dataclass(frozen=True, slots=True)
class BatchMessage:
    """What came in one piece: rows `first` to `last` of the sender's spool; none if `last` is less.

    `clock` is the sender's time when it was written, in seconds since the epoch.
    """

    number: int
    first_row: int
    last_row: int
    sender_time: float
    entries: Sequence[RecordOrBatch]


@dataclass
class BatchEncoder:
    """The sender's side of one correspondence."""

    message_count: int = 0
    _sender_numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    _name_set_numbers: dict[Names, int] = field(default_factory=dict)
    _last_ranks: AttemptRanks = 0, ()
    _delta: HeartbeatDelta = field(default_factory=HeartbeatDelta)

    def encode(
        self, entries: Sequence[RecordOrBatch], first_row: int, last_row: int, sender_time: float
    ) -> bytes:
        """The next parcel."""
        senders, names = len(self._sender_numbers), len(self._name_set_numbers)
        body = b"".join([piece for entry in entries for piece in self._encode_entry(entry)])
        new = [[*self._sender_numbers][senders:], [*self._name_set_numbers][names:]]
        told = json.dumps(new, separators=(",", ":")).encode() if any(new) else b""
        self.message_count += 1
        return (
            MESSAGE_HEADER.pack(self.message_count, first_row, last_row, sender_time, len(told))
            + told
            + body
        )

    def _encode_entry(self, entry: RecordOrBatch) -> Iterator[bytes]:
        if isinstance(entry, Record) and not is_batchable(entry):
            yield self._encode_json(entry)
            return
        sheet = entry if isinstance(entry, RecordBatch) else make_batch([entry])
        if names := self._name_set_number(sheet.names):
            yield self._encode_batch(sheet, names)
        else:
            yield from map(self._encode_json, sheet.records())

    def _encode_batch(self, batch: RecordBatch, name_set: int) -> bytes:
        circle, ranks = (batch.attempt, batch.ranks), len(batch.ranks)
        senders: list[int] = []
        if circle == self._last_ranks:
            name_set += SAME_RANKS_FLAG
        else:
            senders = [self._sender_number(batch.attempt, rank) for rank in batch.ranks]
        sequences = [sequence & 0xFFFFFFFF for sequence in batch.sequences]
        numbers = chain(senders, sequences, batch.times, *batch.rows)
        head = ENTRY_HEADER.pack(name_set, ranks, batch.step, batch.step_index)
        body = struct.pack(_batch_format(len(senders), ranks, len(batch.names)), *numbers)
        self._last_ranks = circle
        return head + body

    def _encode_json(self, record: Record) -> bytes:
        told: list[object] = [dict(record.values), dict(record.attributes)]
        if record.event is Event.HEARTBEAT:
            told = self._delta.encode(record)
        text = json.dumps([record.event.value, *told], separators=(",", ":")).encode()
        sender = self._sender_number(record.attempt, record.rank)
        alone = JSON_RECORD_HEADER.pack(
            sender, record.sequence & 0xFFFFFFFF, record.time, len(text)
        )
        return ENTRY_HEADER.pack(0, 1, record.step, record.step_index) + alone + text

    def _sender_number(self, attempt: int, rank: int) -> int:
        return self._sender_numbers.setdefault((attempt, rank), len(self._sender_numbers))

    def _name_set_number(self, names: Names) -> int:
        """The number of that set of names, from 1; 0 where it has to travel as JSON."""
        known = self._name_set_numbers.get(names)
        if known is None and len(self._name_set_numbers) < MAX_NAME_SETS:
            known = self._name_set_numbers[names] = len(self._name_set_numbers) + 1
        return known or 0


@dataclass
class BatchDecoder:
    """The receiver's side. Records it reads are of `run`."""

    run: str
    last_number: int = 0
    _senders: list[tuple[int, int]] = field(default_factory=list)
    _name_sets: list[Names] = field(default_factory=list)
    _last_ranks: AttemptRanks = 0, ()
    _delta: HeartbeatDelta = field(default_factory=HeartbeatDelta)

    def decode(self, data: bytes) -> BatchMessage:
        """The next parcel. Raises ParcelError for one that is not the next, or not a parcel."""
        try:
            number, first, last, clock, size = MESSAGE_HEADER.unpack_from(data)
            if number == self.last_number + 1:
                self._add_definitions(data[MESSAGE_HEADER.size : MESSAGE_HEADER.size + size])
                entries = list(self._decode_entries(data, MESSAGE_HEADER.size + size))
        except _DECODE_ERRORS as error:
            raise BatchMessageError("damaged", f"{type(error).__name__} in a parcel.") from error
        if number != self.last_number + 1:
            reason = "repeated" if number <= self.last_number else "gap"
            raise BatchMessageError(reason, f"Parcel {number} came after {self.last_number}.")
        self.last_number = number
        return BatchMessage(number, first, last, clock, entries)

    def _add_definitions(self, definitions: bytes) -> None:
        senders, sets = json.loads(definitions) if definitions else ((), ())
        self._senders += [
            (_checked_int64(attempt), _checked_int64(rank)) for attempt, rank in senders
        ]
        self._name_sets += [_checked_distinct(map(str, names)) for names in sets]

    def _decode_entries(self, data: bytes, offset: int) -> Iterator[RecordOrBatch]:
        while offset < len(data):
            names, count, step, beat = ENTRY_HEADER.unpack_from(data, offset)
            offset += ENTRY_HEADER.size
            if names:
                known = self._name_sets[(names - 1) % SAME_RANKS_FLAG]
                told = 0 if names & SAME_RANKS_FLAG else count
                layout = _batch_format(told, count, len(known))
                numbers = struct.unpack_from(layout, data, offset)
                offset += struct.calcsize(layout)
                self._set_ranks(numbers[:told], count)
                yield self._decode_batch(known, step, beat, numbers[told:])
            else:
                sender, sequence, time, size = JSON_RECORD_HEADER.unpack_from(data, offset)
                offset += JSON_RECORD_HEADER.size + size
                yield self._decode_record(
                    data[offset - size : offset], step, beat, (sender, sequence, time)
                )

    def _set_ranks(self, sender_numbers: Sequence[int], count: int) -> None:
        """So many ranks speak next: these senders, or if there are none the last ones again."""
        if sender_numbers:
            senders = [self._senders[number] for number in sender_numbers]
            (attempt,) = {attempt for attempt, _ in senders}
            self._last_ranks = attempt, _checked_ranks(senders)
        if not count or len(self._last_ranks[1]) != count:
            raise ValueError("Others spoke last.")

    def _decode_batch(
        self, names: Names, step: int, step_index: int, numbers: Sequence[Any]
    ) -> RecordOrBatch:
        attempt, ranks = self._last_ranks
        count = len(ranks)
        starts = [2 * count + at * len(names) for at in range(count)]
        sheet = RecordBatch(
            run=self.run,
            attempt=attempt,
            step=step,
            step_index=step_index,
            names=names,
            ranks=ranks,
            times=tuple(numbers[count : 2 * count]),
            sequences=tuple(numbers[:count]),
            rows=tuple([tuple(numbers[at : at + len(names)]) for at in starts]),
        )
        return sheet if count > 1 else next(sheet.records())

    def _decode_record(
        self, text: bytes, step: int, step_index: int, header: tuple[int, int, float]
    ) -> Record:
        word, *told = json.loads(text)
        sender, sequence, time = header
        attempt, rank = self._senders[sender]
        event = Event(word)
        values, facts = self._delta.decode(*told) if event is Event.HEARTBEAT else told
        return Record(
            run=self.run,
            rank=rank,
            step=step,
            time=time,
            event=event,
            values={str(name): float(value) for name, value in values.items()},
            attributes={str(name): str(fact) for name, fact in facts.items()},
            attempt=attempt,
            step_index=step_index,
            sequence=sequence,
        )


def _batch_format(senders: int, ranks: int, names: int) -> str:
    """Senders and sequences, then times and values."""
    return f"<{senders + ranks}I{ranks * (1 + names)}d"


def _checked_ranks(senders: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    ranks = _checked_distinct(rank for _, rank in senders)
    if WHOLE_RUN in ranks:
        raise ValueError("The run is no rank.")
    return ranks


def _checked_int64(value: object) -> int:
    """A number of 64 bits."""
    if not isinstance(value, int) or value.bit_length() > 63:
        raise ValueError("It is no attempt, and no rank.")
    return value


def _checked_distinct(items: Iterable[Item]) -> tuple[Item, ...]:
    told = tuple(items)
    if len({*told}) < len(told):
        raise ValueError("It is told twice.")
    return told


def encode_standalone(entries: Sequence[RecordOrBatch]) -> bytes:
    """These entries as a parcel that stands for itself."""
    return BatchEncoder().encode(entries, 0, 0, 0.0)


def decode_standalone(data: bytes, run: str) -> Sequence[RecordOrBatch]:
    """What is in a parcel that stands for itself, as `alone` wrote it. Raises ParcelError."""
    return BatchDecoder(run).decode(data).entries
