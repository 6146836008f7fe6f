"""A step or evaluation that is still waiting for ranks."""

from __future__ import annotations

from dataclasses import dataclass, field

from sentinel.aggregate.rank_values import RankValues, merge_record, tabulate
from sentinel.model.record import Record
from sentinel.model.record_batch import RecordOrBatch, iter_records
from sentinel.signals.key_map import KeyMap


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
