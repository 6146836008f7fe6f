"""Steps and evaluations that are still waiting for ranks, and those that are closed."""

from __future__ import annotations

from collections.abc import Iterable, KeysView
from dataclasses import dataclass, field
from itertools import islice

from sentinel.aggregate.rank_values import RankValues, merge_record, tabulate
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordOrBatch, iter_records
from sentinel.signals.key_map import KeyMap

MAX_CLOSED_STEPS = 256
"""Closed steps whose signals are remembered, so that late values of other signals still count."""

StepKey = tuple[int, int]
"""Step index, and the order in which events of one step index close."""


@dataclass(slots=True)
class PendingStep:
    """A step or evaluation that is not closed: the values so far, and when they arrived (seconds).

    Each rank has one row in `tables`; `table_by_rank` is the index of its table.
    """

    first_received_at: float
    last_received_at: float
    tables: list[RankValues] = field(default_factory=list)
    table_by_rank: dict[int, int] = field(default_factory=dict)

    @property
    def reported_ranks(self) -> KeysView[int]:
        """Ranks with values."""
        return self.table_by_rank.keys()

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
        """Remove the values of that rank."""
        self._take_rank(rank)

    def _take_rank(self, rank: int) -> RankValues | None:
        index = self.table_by_rank.pop(rank, None)
        return None if index is None else self.tables[index].take_rank(rank)

    def _add_table(self, new: RankValues) -> None:
        index = len(self.tables)
        for at, table in enumerate(self.tables):
            if table.has_same_layout(new):
                table.add_rows(new)
                index = at
                break
        else:
            self.tables.append(new)
        self.table_by_rank.update(dict.fromkeys(new.rows, index))


@dataclass(slots=True)
class ClosedSteps:
    """The steps and evaluations that are closed; `last_key` is the last of them in closing order.

    `signals_by_step` are the signals of the newest. `evaluating_ranks` are the ranks of the last
    evaluation.
    """

    last_key: StepKey = (-1, 0)
    signals_by_step: dict[StepKey, list[str]] = field(default_factory=dict)
    evaluating_ranks: set[int] = field(default_factory=set)

    def add(self, key: StepKey, signals: Iterable[str]) -> None:
        """Remember that the step is closed, and its signals."""
        self.last_key = max(self.last_key, key)
        self.signals_by_step[key] = [*signals]
        excess = max(0, len(self.signals_by_step) - MAX_CLOSED_STEPS)
        for old in [*islice(self.signals_by_step, excess)]:
            del self.signals_by_step[old]

    def reopens(self, key: StepKey, record: Record, values: RankValues) -> bool:
        """Whether the record opens that step again, although a later one, or this one, is closed.

        Values captured at a step are often sent only when the next step begins, after an evaluation
        between the two; and many trainers evaluate once more after their last step. `values` are
        those of the record.
        """
        if key not in self.signals_by_step:
            return key[0] == self.last_key[0]
        is_repeated_eval = record.event is Event.EVAL and record.rank in self.evaluating_ranks
        if not is_repeated_eval or key != self.last_key:
            return False
        return not {*values.names} & {*self.signals_by_step[key]} <= {"global_step", "epoch"}

    def new_signals(self, key: StepKey, values: RankValues) -> RankValues | None:
        """The values of signals that the closed step does not have, which it has from now on.

        None if there are none, or the step is no longer remembered.
        """
        known = self.signals_by_step.get(key)
        if known is None:
            return None
        new = values.without_signals(known)
        known.extend(new.names)
        return new if new.names else None
