"""Moment: one step, or evaluation, while ranks may still speak of it, and what is left of it."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field, replace
from itertools import islice

from sentinel.aggregate.rank_values import Said, Table, tabled
from sentinel.model.record import Event, Record
from sentinel.model.record_batch import Entry, Sheet
from sentinel.signals.key_map import Dialect

REMEMBERED = 256
"""Closed steps whose signals are remembered, so that late words on others are still judged."""

Place = tuple[int, int]
"""Beat and turn: where a moment stands in the order of closing."""


@dataclass(slots=True)
class Moment:
    """One step, or evaluation, still open: what each rank said of it, and when, in seconds.

    `heard` are all ranks that spoke: each has its own place in `said`, or a row in one of `tables`.
    """

    first_heard: float
    last_heard: float
    heard: set[int] = field(default_factory=set)
    said: dict[int, Said] = field(default_factory=dict)
    tables: list[Table] = field(default_factory=list)

    def hear(self, entry: Entry, now: float, spoken: Dialect) -> None:
        """One more word of a rank, or of several, in that dialect."""
        self.last_heard = now
        if isinstance(entry, Record):
            self._hear(entry, spoken)
        else:
            self._read(entry, spoken)

    def forget(self, rank: int) -> None:
        """Leave out all that this rank said."""
        self.heard.discard(rank)
        self.said.pop(rank, None)
        for table in self.tables:
            table.rows.pop(rank, None)
        self.tables = [table for table in self.tables if table.rows]

    def _hear(self, record: Record, spoken: Dialect) -> None:
        if record.rank in self.heard and record.rank not in self.said:
            (table,) = (each for each in self.tables if record.rank in each.rows)
            self.said[record.rank] = table.leave(record.rank)
        self.said.setdefault(record.rank, Said(record)).add(record, spoken)
        self.heard.add(record.rank)

    def _read(self, sheet: Sheet, spoken: Dialect) -> None:
        table = tabled(sheet, spoken)
        if table is not None and not self.heard.isdisjoint(table.rows):
            table = self._continued(table)
        if table is None:
            for record in sheet.records():
                self._hear(record, spoken)
            return
        self.heard.update(table.rows)
        for known in self.tables:
            if _alike(known, table):
                known.rows |= table.rows
                known.last = max(known.last, table.last, key=lambda record: record.time)
                return
        self.tables.append(table)

    def _continued(self, new: Table) -> Table | None:
        """A second word of ranks that so far have said the same: both, out of the table of the one.

        None where they said something else, or some of the same again.
        """
        for old in self.tables:
            if new.rows.keys() <= old.rows.keys() and {*old.names}.isdisjoint(new.names):
                rows = {rank: old.rows.pop(rank) + row for rank, row in new.rows.items()}
                last = replace(new.last, time=max(old.last.time, new.last.time))
                logged_as = {**old.logged_as, **new.logged_as}
                return Table(old.names + new.names, logged_as, last, rows)
        return None


def _alike(one: Table, other: Table) -> bool:
    """Whether rows of the one may stand in the other."""
    alike = one.names == other.names and one.logged_as == other.logged_as
    return alike and one.last.step == other.last.step


def without(rank: int, moments: dict[Place, Moment]) -> dict[Place, Moment]:
    """These moments, without all that one rank said; of those that others spoke of as well."""
    for moment in moments.values():
        moment.forget(rank)
    return {place: moment for place, moment in moments.items() if moment.heard}


@dataclass(slots=True)
class Past:
    """The moments that were closed, the last of them at the place `upto`.

    `told` are the signals of the newest. `evaluators` are the ranks that spoke in the last
    evaluation.
    """

    upto: Place = (-1, 0)
    told: dict[Place, list[str]] = field(default_factory=dict)
    evaluators: set[int] = field(default_factory=set)

    def close(self, place: Place, signals: Iterable[str]) -> None:
        """Remember that moment, in which these signals were told of."""
        self.upto = max(self.upto, place)
        self.told[place] = [*signals]
        for old in [*islice(self.told, max(0, len(self.told) - REMEMBERED))]:
            del self.told[old]

    def reopens(self, place: Place, record: Record, said: Said) -> bool:
        """Whether that moment is still to be told of, though one after it, or the like, was.

        What was captured at a step is often sent only when the next one begins, behind an
        evaluation between them; and many a trainer evaluates once more after its last step. The
        record is what now comes, `said` the same in our words.
        """
        if place not in self.told:
            return place[0] == self.upto[0]
        again = record.event is Event.EVAL and record.rank in self.evaluators
        if not again or place != self.upto:
            return False
        return not said.values.keys() & {*self.told[place]} <= {"global_step", "epoch"}

    def is_news(self, place: Place, said: Said) -> bool:
        """Leave out what is known of that moment, and whether anything remains of what is said."""
        known = self.told.get(place)
        said.leave_out(known or ())
        if known is None or not said.values:
            return False
        known.extend(said.values)
        return True
