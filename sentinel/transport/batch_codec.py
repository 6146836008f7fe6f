"""Encodes records of many ranks as numbered messages between agents, and for the spool on disk.

STEP values that several ranks logged at one step under the same names are one struct. Ranks and
sets of names are numbers that are defined once: 22 bytes for the entry, 16 for each rank (12 if the
ranks are those of the entry before), and 8 for each value. All other records are JSON, a heartbeat
as its delta to the last one. Definitions hold for a whole stream, from one `BatchEncoder` to one
`BatchDecoder`, so messages must be decoded in order; their numbers show repeats and gaps.

    header    message number, first and last row of the spool, sender's clock in seconds, size of
              the definitions
    JSON      [[attempt, rank] of new senders, [name, ...] of new sets of names]
    entries   name set (0: JSON follows), number of ranks, step, step index; then the senders,
              unless SAME_RANKS_FLAG is set, and their sequences, times and values; or sender,
              sequence, time, length of the JSON, and [event, values, attributes]
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from itertools import chain
from typing import Any, NamedTuple, TypeVar

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import (
    FLOAT64_BYTES,
    RecordBatch,
    RecordOrBatch,
    is_batchable,
    make_batch,
)
from sentinel.transport.record_codec import DECODE_ERRORS

MESSAGE_HEADER = struct.Struct("<IQQdI")
ENTRY_HEADER = struct.Struct("<HIqq")
JSON_RECORD_HEADER = struct.Struct("<IIdI")
MAX_NAME_SETS = 4096
"""Sets of names that one stream defines; records with further sets are sent as JSON."""
SAME_RANKS_FLAG = 1 << 15
"""Added to the name set of an entry whose senders are those of the entry before, in order."""

Names = tuple[str, ...]
AttemptRanks = tuple[int, tuple[int, ...]]
"""An attempt, and ranks in it."""
Fields = Mapping[str, Any]
Item = TypeVar("Item")


class BatchMessageError(ValueError):
    """Bytes that are not the next message: `reason` is damaged, repeated or gap."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class BatchMessage(NamedTuple):
    """One message: rows `first_row` to `last_row` of the sender's spool; none if the last is less.

    `sender_time` is the sender's clock when it encoded the message, in seconds since the epoch.
    """

    number: int
    first_row: int
    last_row: int
    sender_time: float
    entries: Sequence[RecordOrBatch]


@dataclass
class HeartbeatDelta:
    """Encodes or decodes heartbeats as differences; holds the last values and attributes.

    Successive heartbeats differ in a few fields at most.
    """

    last: tuple[Fields, Fields] = field(default_factory=lambda: ({}, {}))

    def encode(self, heartbeat: Record) -> list[object]:
        """Values and attributes; if their names are the last ones, the differences, and True.

        A difference names its field by position.
        """
        previous, self.last = self.last, (dict(heartbeat.values), dict(heartbeat.attributes))
        pairs = [*zip(self.last, previous, strict=True)]
        if all([*new] == [*old] for new, old in pairs):
            return [*(_diff(new, old) for new, old in pairs), True]
        return [*self.last]

    def decode(
        self, values: Fields, attributes: Fields, is_delta: object = False
    ) -> tuple[Fields, Fields]:
        """Values and attributes of the heartbeat that `encode` returned this for."""
        if is_delta is True:
            values, attributes = map(_apply_diff, self.last, (values, attributes))
        self.last = values, attributes
        return self.last


@dataclass
class BatchEncoder:
    """The sender's side of one stream of messages."""

    message_count: int = 0
    _sender_numbers: dict[tuple[int, int], int] = field(default_factory=dict)
    _name_set_numbers: dict[Names, int] = field(default_factory=dict)
    _last_ranks: AttemptRanks = 0, ()
    _delta: HeartbeatDelta = field(default_factory=HeartbeatDelta)

    def encode(
        self, entries: Sequence[RecordOrBatch], first_row: int, last_row: int, sender_time: float
    ) -> bytes:
        """The next message."""
        senders, names = len(self._sender_numbers), len(self._name_set_numbers)
        body = b"".join([piece for entry in entries for piece in self._encode_entry(entry)])
        new = [[*self._sender_numbers][senders:], [*self._name_set_numbers][names:]]
        definitions = json.dumps(new, separators=(",", ":")).encode() if any(new) else b""
        self.message_count += 1
        header = MESSAGE_HEADER.pack(
            self.message_count, first_row, last_row, sender_time, len(definitions)
        )
        return header + definitions + body

    def _encode_entry(self, entry: RecordOrBatch) -> Iterator[bytes]:
        if isinstance(entry, Record) and not is_batchable(entry):
            yield self._encode_json(entry)
            return
        batch = entry if isinstance(entry, RecordBatch) else make_batch([entry])
        if name_set := self._name_set_number(batch.names):
            yield self._encode_batch(batch, name_set)
        else:
            yield from map(self._encode_json, batch.records())

    def _encode_batch(self, batch: RecordBatch, name_set: int) -> bytes:
        attempt_ranks, count = (batch.attempt, batch.ranks), len(batch.ranks)
        senders: list[int] = []
        if attempt_ranks == self._last_ranks:
            name_set += SAME_RANKS_FLAG
        else:
            numbers = self._sender_numbers
            senders = [
                numbers.setdefault((batch.attempt, rank), len(numbers)) for rank in batch.ranks
            ]
        sequences = [sequence & 0xFFFFFFFF for sequence in batch.sequences]
        body = chain(senders, sequences, batch.times)
        header = ENTRY_HEADER.pack(name_set, count, batch.step, batch.step_index)
        self._last_ranks = attempt_ranks
        return header + struct.pack(_batch_format(len(senders), count), *body) + batch.matrix

    def _encode_json(self, record: Record) -> bytes:
        fields: list[object] = [dict(record.values), dict(record.attributes)]
        if record.event is Event.HEARTBEAT:
            fields = self._delta.encode(record)
        text = json.dumps([record.event.value, *fields], separators=(",", ":")).encode()
        sender = self._sender_number(record.attempt, record.rank)
        header = JSON_RECORD_HEADER.pack(
            sender, record.sequence & 0xFFFFFFFF, record.time, len(text)
        )
        return ENTRY_HEADER.pack(0, 1, record.step, record.step_index) + header + text

    def _sender_number(self, attempt: int, rank: int) -> int:
        return self._sender_numbers.setdefault((attempt, rank), len(self._sender_numbers))

    def _name_set_number(self, names: Names) -> int:
        """The number of that set of names, from 1; 0 if the record must be sent as JSON."""
        known = self._name_set_numbers.get(names)
        if known is None and len(self._name_set_numbers) < MAX_NAME_SETS:
            known = self._name_set_numbers[names] = len(self._name_set_numbers) + 1
        return known or 0


@dataclass
class BatchDecoder:
    """The receiver's side of one stream. The decoded records belong to `run`."""

    run: str
    last_number: int = 0
    _senders: list[tuple[int, int]] = field(default_factory=list)
    _name_sets: list[Names] = field(default_factory=list)
    _last_ranks: AttemptRanks = 0, ()
    _delta: HeartbeatDelta = field(default_factory=HeartbeatDelta)

    def decode(self, data: bytes) -> BatchMessage:
        """The next message. Raises BatchMessageError for anything else."""
        try:
            number, first, last, clock, size = MESSAGE_HEADER.unpack_from(data)
            if number == self.last_number + 1:
                self._add_definitions(data[MESSAGE_HEADER.size : MESSAGE_HEADER.size + size])
                entries = list(self._decode_entries(data, MESSAGE_HEADER.size + size))
        except (LookupError, *DECODE_ERRORS) as error:
            message = f"A batch message is damaged ({type(error).__name__})."
            raise BatchMessageError("damaged", message) from error
        if number != self.last_number + 1:
            reason = "repeated" if number <= self.last_number else "gap"
            message = f"Batch message {number} arrived after {self.last_number}."
            raise BatchMessageError(reason, message)
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
            name_set, count, step, step_index = ENTRY_HEADER.unpack_from(data, offset)
            offset += ENTRY_HEADER.size
            if name_set:
                names = self._name_sets[(name_set - 1) % SAME_RANKS_FLAG]
                senders = 0 if name_set & SAME_RANKS_FLAG else count
                layout = _batch_format(senders, count)
                numbers = struct.unpack_from(layout, data, offset)
                offset += struct.calcsize(layout)
                end = offset + FLOAT64_BYTES * count * len(names)
                if end > len(data):
                    raise ValueError("The rows are cut off.")
                self._set_ranks(numbers[:senders], count)
                stamp = step, step_index
                yield self._decode_batch(names, stamp, numbers[senders:], data[offset:end])
                offset = end
            else:
                sender, sequence, time, size = JSON_RECORD_HEADER.unpack_from(data, offset)
                offset += JSON_RECORD_HEADER.size + size
                yield self._decode_record(
                    data[offset - size : offset], step, step_index, (sender, sequence, time)
                )

    def _set_ranks(self, sender_numbers: Sequence[int], count: int) -> None:
        """Set the ranks of the next entry: these senders, or if empty those of the entry before."""
        if sender_numbers:
            senders = [self._senders[number] for number in sender_numbers]
            (attempt,) = {attempt for attempt, _ in senders}
            self._last_ranks = attempt, _checked_ranks(senders)
        if not count or len(self._last_ranks[1]) != count:
            raise ValueError("The entry before has other ranks.")

    def _decode_batch(
        self, names: Names, stamp: tuple[int, int], numbers: Sequence[Any], matrix: bytes
    ) -> RecordOrBatch:
        attempt, ranks = self._last_ranks
        count, (step, step_index) = len(ranks), stamp
        batch = RecordBatch(
            run=self.run,
            attempt=attempt,
            step=step,
            step_index=step_index,
            names=names,
            ranks=ranks,
            times=tuple(numbers[count:]),
            sequences=tuple(numbers[:count]),
            matrix=matrix,
        )
        return batch if count > 1 else next(batch.records())

    def _decode_record(
        self, text: bytes, step: int, step_index: int, header: tuple[int, int, float]
    ) -> Record:
        name, values, attributes, *is_delta = json.loads(text.decode())
        sender, sequence, time = header
        attempt, rank = self._senders[sender]
        event = Event(name)
        values = {str(name): float(value) for name, value in values.items()}
        attributes = {str(name): str(text) for name, text in attributes.items()}
        if event is Event.HEARTBEAT:
            values, attributes = self._delta.decode(values, attributes, *is_delta)
        elif is_delta:
            raise ValueError("Only a heartbeat is a delta.")
        return Record(
            run=self.run,
            rank=rank,
            step=step,
            time=time,
            event=event,
            values=values,
            attributes=attributes,
            attempt=attempt,
            step_index=step_index,
            sequence=sequence,
        )


def _batch_format(senders: int, ranks: int) -> str:
    """Struct format of an entry before its values: senders and sequences, then times."""
    return f"<{senders + ranks}I{ranks}d"


def _checked_ranks(senders: Iterable[tuple[int, int]]) -> tuple[int, ...]:
    ranks = _checked_distinct(rank for _, rank in senders)
    if WHOLE_RUN in ranks:
        raise ValueError("A batch holds ranks, not the whole run.")
    return ranks


def _checked_int64(value: object) -> int:
    """The value, if it is an int that fits 64 bits. Raises ValueError."""
    if not isinstance(value, int) or value.bit_length() > 63:
        raise ValueError("Not an attempt or a rank.")
    return value


def _checked_distinct(items: Iterable[Item]) -> tuple[Item, ...]:
    """The items, if no two are equal. Raises ValueError."""
    checked = tuple(items)
    if len({*checked}) < len(checked):
        raise ValueError("An item is repeated.")
    return checked


def _diff(new: Fields, old: Fields) -> dict[str, object]:
    # Compared by repr, by which 0.0 and -0.0 differ and NaN equals itself.
    pairs = enumerate(zip(new.values(), old.values(), strict=True))
    return {str(at): value for at, (value, last) in pairs if repr(value) != repr(last)}


def _apply_diff(old: Fields, changes: Fields) -> Fields:
    if not changes:
        return old
    names = _names_by_position(tuple(old))
    return {**old, **{names[at]: value for at, value in changes.items()}}


@lru_cache(maxsize=256)
def _names_by_position(names: Names) -> dict[str, str]:
    return {str(at): name for at, name in enumerate(names)}


def encode_standalone(entries: Sequence[RecordOrBatch]) -> bytes:
    """These entries as a message that needs no earlier one."""
    return BatchEncoder().encode(entries, 0, 0, 0.0)


def decode_standalone(data: bytes, run: str) -> Sequence[RecordOrBatch]:
    """Entries of a message from `encode_standalone`. Raises BatchMessageError."""
    return BatchDecoder(run).decode(data).entries
