"""Moment: one step, or evaluation, while ranks may still speak of it, and what is left of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from sentinel.aggregate.rank_values import RankValues, RankValuesBatch, to_rank_values_batch
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordBatch, RecordOrBatch
from sentinel.signals.key_map import KeyMap

MAX_CLOSED_STEPS = 256
"""Closed steps whose signals are remembered, so that late words on others are still judged."""

StepKey = tuple[int, int]
"""Beat and turn: where a moment stands in the order of closing."""


@dataclass(slots=True)
class PendingStep:
    """One step, or evaluation, still open: what each rank said of it, and when, in seconds.

    `heard` are all ranks that spoke: each has its own place in `said`, or a row in one of `tables`.
    """

    first_received_at: float
    last_received_at: float
    reported_ranks: set[int] = field(default_factory=set)
    values_by_rank: dict[int, RankValues] = field(default_factory=dict)
    value_batches: list[RankValuesBatch] = field(default_factory=list)

    def add(self, entry: RecordOrBatch, now: float, key_map: KeyMap) -> None:
        """One more word of a rank, or of several, in that dialect."""
        self.last_received_at = now
        if isinstance(entry, Record):
            self._add_record(entry, key_map)
        else:
            self._add_batch(entry, key_map)

    def discard_rank(self, rank: int) -> None:
        """Leave out all that this rank said."""
        self.reported_ranks.discard(rank)
        self.values_by_rank.pop(rank, None)
        for table in self.value_batches:
            table.rows.pop(rank, None)
        self.value_batches = [table for table in self.value_batches if table.rows]

    def _add_record(self, record: Record, key_map: KeyMap) -> None:
        if record.rank in self.reported_ranks and record.rank not in self.values_by_rank:
            (table,) = (each for each in self.value_batches if record.rank in each.rows)
            self.values_by_rank[record.rank] = table.split_off(record.rank)
        self.values_by_rank.setdefault(record.rank, RankValues(record)).add(record, key_map)
        self.reported_ranks.add(record.rank)

    def _add_batch(self, batch: RecordBatch, key_map: KeyMap) -> None:
        table = to_rank_values_batch(batch, key_map)
        if table is not None and not self.reported_ranks.isdisjoint(table.rows):
            table = self._extended_batch(table)
        if table is None:
            for record in batch.records():
                self._add_record(record, key_map)
            return
        self.reported_ranks.update(table.rows)
        for known in self.value_batches:
            if _has_same_layout(known, table):
                known.rows |= table.rows
                known.last_record = max(
                    known.last_record, table.last_record, key=lambda record: record.time
                )
                return
        self.value_batches.append(table)

    def _extended_batch(self, new: RankValuesBatch) -> RankValuesBatch | None:
        """A second word of ranks that so far have said the same: both, out of the table of the one.

        None where they said something else, or some of the same again.
        """
        for old in self.value_batches:
            if new.rows.keys() <= old.rows.keys() and {*old.names}.isdisjoint(new.names):
                rows = {rank: old.rows.pop(rank) + row for rank, row in new.rows.items()}
                last = replace(
                    new.last_record, time=max(old.last_record.time, new.last_record.time)
                )
                logged_as = {**old.logged_as, **new.logged_as}
                return RankValuesBatch(old.names + new.names, logged_as, last, rows)
        return None


def _has_same_layout(one: RankValuesBatch, other: RankValuesBatch) -> bool:
    """Whether rows of the one may stand in the other."""
    alike = one.names == other.names and one.logged_as == other.logged_as
    return alike and one.last_record.step == other.last_record.step


def without_rank(
    rank: int, pending_steps: dict[StepKey, PendingStep]
) -> dict[StepKey, PendingStep]:
    """These moments, without all that one rank said; of those that others spoke of as well."""
    for moment in pending_steps.values():
        moment.discard_rank(rank)
    return {place: moment for place, moment in pending_steps.items() if moment.reported_ranks}


@dataclass(slots=True)
class ClosedSteps:
    """The moments that were closed, the last of them at the place `upto`.

    `told` are the signals of the newest. `evaluators` are the ranks that spoke in the last
    evaluation.
    """

    last_key: StepKey = (-1, 0)
    signals_by_step: dict[StepKey, list[str]] = field(default_factory=dict)
    evaluating_ranks: set[int] = field(default_factory=set)

    def add(self, key: StepKey, signals: Iterable[str]) -> None:
        """Remember that moment, in which these signals were told of."""
        self.last_key = max(self.last_key, key)
        self.signals_by_step[key] = [*signals]
        for old in [
            *islice(self.signals_by_step, max(0, len(self.signals_by_step) - MAX_CLOSED_STEPS))
        ]:
            del self.signals_by_step[old]

    def reopens(self, key: StepKey, record: Record, values: RankValues) -> bool:
        """Whether that moment is still to be told of, though one after it, or the like, was.

        What was captured at a step is often sent only when the next one begins, behind an
        evaluation between them; and many a trainer evaluates once more after its last step. The
        record is what now comes, `said` the same in our words.
        """
        if key not in self.signals_by_step:
            return key[0] == self.last_key[0]
        again = record.event is Event.EVAL and record.rank in self.evaluating_ranks
        if not again or key != self.last_key:
            return False
        return not values.values.keys() & {*self.signals_by_step[key]} <= {"global_step", "epoch"}

    def discard_reported(self, key: StepKey, values: RankValues) -> bool:
        """Leave out what is known of that moment, and whether anything remains of what is said."""
        known = self.signals_by_step.get(key)
        values.discard_signals(known or ())
        if known is None or not values.values:
            return False
        known.extend(values.values)
        return True
