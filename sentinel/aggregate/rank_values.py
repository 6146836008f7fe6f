"""The values of each rank at one step, with keys mapped to signal names."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field, replace

from sentinel.aggregate.combine_rules import combine_values
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import (
    RecordBatch,
    RecordOrBatch,
    iter_records,
    pack_row,
    unpack_row,
)
from sentinel.signals.catalogue import WEIGHT_KEY, get_combine_rule
from sentinel.signals.key_map import KeyMap, resolve_keys


@dataclass(slots=True)
class PendingStep:
    """A step or evaluation that is not closed: the values so far, and when they arrived (seconds).

    Each rank has one row in `tables`; `table_by_rank` is the index of its table. `awaited_ranks`
    are ranks that were awaited when all ranks were last checked; the last of them still is. `held`
    are events of ranks that follow the step.
    """

    first_received_at: float
    last_received_at: float
    tables: list[RankValues] = field(default_factory=list)
    table_by_rank: dict[int, int] = field(default_factory=dict)
    awaited_ranks: list[int] = field(default_factory=list)
    held: list[Record] = field(default_factory=list)

    def add(self, entry: RecordOrBatch, now: float, key_map: KeyMap) -> None:
        """Add the values of one rank or several."""
        self.last_received_at = now
        new = tabulate(entry, key_map)
        if new is not None and not self.table_by_rank.keys().isdisjoint(new.rows):
            old = self.tables[self.table_by_rank.get(next(iter(new.rows)), 0)]
            new = old.with_more_signals(new)
        if new is not None:
            self._add_table(new)
            return
        for record in iter_records([entry]):
            self._add_table(merge_record(record, key_map, self._take_rank(record.rank)))

    def discard_rank(self, rank: int) -> None:
        """Remove the values of that rank, and its held events."""
        self._take_rank(rank)
        self.held = [record for record in self.held if record.rank != rank]

    def _take_rank(self, rank: int) -> RankValues | None:
        index = self.table_by_rank.pop(rank, None)
        return None if index is None else self.tables[index].take_rank(rank)

    def _add_table(self, new: RankValues) -> None:
        index = len(self.tables)
        # With weights or attributes each rank has a table of its own: none can be shared.
        shared = self.tables if new.can_be_shared else ()
        for at, table in enumerate(shared):
            if table.has_same_layout(new):
                table.add_rows(new)
                index = at
                break
        else:
            self.tables.append(new)
        self.table_by_rank.update(dict.fromkeys(new.rows, index))


@dataclass(slots=True)
class RankValues:
    """Values of one or more ranks at one step: a row per rank, with a value for each of `names`.

    A row is packed, see `pack_row`. `last_record` holds what the rows have in common: run, attempt,
    step, step index and attributes; its time is that of the newest record. `logged_as` holds the
    key of each signal that was logged under another name, since some keys imply a unit
    (`objective/kl` is a sum). `weights` are the weights of signals that are not 1. Ranks with
    attributes or weights do not share a table.
    """

    names: tuple[str, ...]
    rows: dict[int, bytes]
    last_record: Record
    logged_as: Mapping[str, str] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)

    @property
    def can_be_shared(self) -> bool:
        """Whether ranks without attributes and weights, as these, can share the table."""
        return not (self.weights or self.last_record.attributes)

    def has_same_layout(self, other: RankValues) -> bool:
        """Whether the rows of `other`, which can be shared, can be added to this table."""
        return (
            (self.names is other.names or self.names == other.names)
            and self.last_record.step == other.last_record.step
            and self.can_be_shared
            and self.logged_as == other.logged_as
        )

    def add_rows(self, other: RankValues) -> None:
        """Add the rows of a table with the same layout."""
        self.rows |= other.rows
        if other.last_record.time > self.last_record.time:
            self.last_record = other.last_record

    def take_rank(self, rank: int) -> RankValues:
        """Remove that rank's row and return it as a table of its own."""
        return replace(self, rows={rank: self.rows.pop(rank)})

    def with_more_signals(self, other: RankValues) -> RankValues | None:
        """The rows of `other` behind those of the same ranks here, which are removed.

        None if `other` has further ranks, or a signal that is already here.
        """
        if not (other.rows.keys() <= self.rows.keys() and set(self.names).isdisjoint(other.names)):
            return None
        time = max(self.last_record.time, other.last_record.time)
        return RankValues(
            self.names + other.names,
            {rank: self.rows.pop(rank) + row for rank, row in other.rows.items()},
            _at_time(other.last_record, time),
            {**self.logged_as, **other.logged_as},
            self.weights,
        )

    def without_signals(self, names: Collection[str]) -> RankValues:
        """A copy without these signals."""
        indices = [at for at, name in enumerate(self.names) if name not in names]
        return replace(
            self,
            names=tuple(self.names[at] for at in indices),
            rows={
                rank: pack_row([values[at] for at in indices])
                for rank, values in zip(self.rows, map(unpack_row, self.rows.values()), strict=True)
            },
            logged_as={name: key for name, key in self.logged_as.items() if name not in names},
            weights={name: weight for name, weight in self.weights.items() if name not in names},
        )


def tabulate(entry: RecordOrBatch, key_map: KeyMap) -> RankValues | None:
    """The values of a record or batch as they are logged; None if they need `merge_record`.

    They do if two keys are the same signal, a value needs conversion, or the record has a weight.
    """
    if isinstance(entry, Record):
        resolved = resolve_keys(tuple(entry.values), entry.event is Event.EVAL, key_map)
        if not resolved.is_direct:
            return None
        rows = {entry.rank: pack_row(tuple(entry.values.values()))}
        return RankValues(resolved.names, rows, entry, resolved.logged_as)
    resolved = resolve_keys(entry.names, False, key_map)
    if not resolved.is_direct:
        return None
    rows = dict(zip(entry.ranks, entry.rows, strict=True))
    return RankValues(resolved.names, rows, _newest_record(entry), resolved.logged_as)


def merge_record(record: Record, key_map: KeyMap, previous: RankValues | None = None) -> RankValues:
    """A record's values merged into the `previous` ones of the same rank, step and event.

    Values of the same signal are combined by its rule. Attributes are those of this record.
    """
    values: dict[str, float] = {}
    logged_as: dict[str, str] = {}
    weights: dict[str, float] = {}
    time = record.time
    if previous is not None:
        values = dict(zip(previous.names, unpack_row(previous.rows[record.rank]), strict=True))
        logged_as, weights = dict(previous.logged_as), dict(previous.weights)
        time = max(time, previous.last_record.time)
    weight = record.values.get(WEIGHT_KEY, 1.0)
    resolved = resolve_keys(tuple(record.values), record.event is Event.EVAL, key_map)
    for name, mapping, (key, value) in zip(
        resolved.names, resolved.mappings, record.values.items(), strict=True
    ):
        converted = None if key == WEIGHT_KEY else mapping.convert(value)
        if converted is not None:
            _merge_value(values, weights, name, converted, weight)
            if name != key:
                logged_as[name] = key
    rows = {record.rank: pack_row(tuple(values.values()))}
    return RankValues(tuple(values), rows, _at_time(record, time), logged_as, weights)


def _merge_value(
    values: dict[str, float], weights: dict[str, float], name: str, value: float, weight: float
) -> None:
    previous = values.get(name)
    if previous is not None:
        previous_weight = weights.get(name, 1.0)
        value = combine_values(get_combine_rule(name), (previous, value), (previous_weight, weight))
        weight += previous_weight
    values[name] = value
    if weight != 1.0 or name in weights:
        weights[name] = weight


def _newest_record(batch: RecordBatch) -> Record:
    """A record without values, with what the ranks of a batch share and their newest time."""
    return Record(
        run=batch.run,
        rank=batch.ranks[0],
        step=batch.step,
        time=max(batch.times),
        attempt=batch.attempt,
        step_index=batch.step_index,
    )


def _at_time(record: Record, time: float) -> Record:
    return record if record.time == time else replace(record, time=time)
