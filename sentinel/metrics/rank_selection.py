"""Ranks: where each rank stands, and which few of many are worth looking at one by one.

Every rank is followed, at a few hundred bytes and about a microsecond a record. Shown are the
lowest ones up to a limit, so that it is always the same, and beyond it those that stand out: named
by an incident that fires, fallen, and those of which the run's records keep speaking. What speaks
for a rank fades, and more of it is needed to be shown than to stay so: series come and go seldom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain, islice
from math import nan
from typing import NamedTuple

from sentinel.model.record import Event, Record
from sentinel.model.record_batch import Sheet
from sentinel.transport.ring_layout import WELL

MOST = 65_536
"""Ranks that are followed; the first ones seen."""

MOST_OUTLIERS = 16
"""Ranks beyond the limit that are shown since they stand out."""

MEMORY = 64
"""Steps of the run in which what was said of a rank fades to a third."""

ENTERS, LEAVES = MEMORY / 4, MEMORY / 16
"""Weight from which a rank is shown, and below which no more: that of a rank which is the slowest
in a quarter of the steps, and in a sixteenth."""

MOST_WEIGHED = 64
"""Ranks whose weight is remembered, the heaviest."""

SLOW = ("step_time", "data_wait", "generation_time")
"""Times by which a rank may be the slowest."""


class RankStanding(NamedTuple):
    """What is known of one rank now. Times in seconds, `last_step` since the epoch."""

    up: bool = True
    step: int = 0
    step_time: float = nan
    last_step: float = nan


@dataclass(slots=True)
class Ranks:
    """Of the ranks of one attempt `limit` are shown; of none, none."""

    limit: int = 64
    known: dict[int, RankStanding] = field(default_factory=dict)
    fallen: dict[int, None] = field(default_factory=dict)
    """Ranks that did not end well, in the order they fell."""
    weights: dict[int, float] = field(default_factory=dict)
    """How much speaks for a rank to be looked at."""
    singled: dict[int, None] = field(default_factory=dict)
    """Ranks that were shown since enough spoke for it, and that enough still speaks for."""
    lowest: list[int] = field(default_factory=list)
    """The ranks that are shown in any case; empty where that has to be found out anew."""
    unshown: int = 0
    """Of a copy: how many ranks it was made without."""

    def clear(self) -> None:
        """Forget them: another attempt has its own."""
        for book in (self.known, self.fallen, self.weights, self.singled, self.lowest):
            book.clear()

    def hear(self, record: Record) -> None:
        """Take over what a record of a single rank says of it."""
        rank, event = record.rank, record.event
        known = self._met(rank)
        if known is None:
            return
        if event is Event.STEP:
            up, _, seconds, _ = known
            seconds = record.values.get("step_time", seconds)
            known = RankStanding(up, record.step, seconds, record.time)
        elif event is Event.START:
            known = known._replace(up=True)
            self.fallen.pop(rank, None)
        elif event is Event.STOP:
            known = known._replace(up=False)
            if record.facts.get("outcome", "") not in WELL:
                self.fallen[rank] = None
        self.known[rank] = known

    def read(self, sheet: Sheet) -> None:
        """Take over what that sheet says of each of its ranks."""
        timed = sheet.names.index("step_time") if "step_time" in sheet.names else None
        for rank, time, row in zip(sheet.ranks, sheet.times, sheet.rows, strict=True):
            known = self._met(rank)
            if known is not None:
                seconds = known.step_time if timed is None else row[timed]
                self.known[rank] = RankStanding(known.up, sheet.step, seconds, time)

    def weigh(self, record: Record) -> None:
        """Take over what a record of the run says of its ranks: who is slowest, lost, or odd."""
        if len(self.known) <= self.limit:
            return
        fade = 1.0 - 1.0 / MEMORY
        self.weights = {rank: weight * fade for rank, weight in self.weights.items()}
        for name in SLOW:
            spread = record.spread.get(name)
            if spread is not None and spread.max > spread.mean:
                self._add(spread.max_rank, 1.0)
        for rank in islice(_troubled(record), MOST_OUTLIERS):
            self._add(rank, float(MEMORY))
        if len(self.weights) > MOST_WEIGHED:
            kept = sorted(self.weights, key=lambda rank: -self.weights[rank])[:MOST_WEIGHED]
            self.weights = {rank: self.weights[rank] for rank in kept}
        self._single_out()

    def shown(self, named: Iterable[int] = ()) -> dict[int, RankStanding]:
        """The ranks to show, in order; `named` are those that must be, if there is room for any."""
        if len(self.known) <= self.limit:
            return dict(sorted(self.known.items()))
        if not self.limit:
            return {}
        if not self.lowest:
            self.lowest = nsmallest(self.limit, self.known)
        usual, outliers = set(self.lowest), set[int]()
        for rank in chain(named, self.fallen, self.singled):
            if rank in self.known and rank not in usual and len(outliers) < MOST_OUTLIERS:
                outliers.add(rank)
        return {rank: self.known[rank] for rank in (*self.lowest, *sorted(outliers))}

    def copy(self, named: Iterable[int] = ()) -> Ranks:
        """Those that are shown, untouched by what comes later."""
        shown = self.shown(named)
        return Ranks(len(shown), shown, unshown=len(self.known) - len(shown))

    def _met(self, rank: int) -> RankStanding | None:
        """What is known of that rank, which may be new; None where it is one too many."""
        known = self.known.get(rank)
        if known is None and len(self.known) < MOST:
            self.lowest.clear()
            return RankStanding()
        return known

    def _add(self, rank: int, weight: float) -> None:
        self.weights[rank] = min(self.weights.get(rank, 0.0) + weight, float(MEMORY))

    def _single_out(self) -> None:
        for rank in [r for r in self.singled if self.weights.get(r, 0.0) < LEAVES]:
            del self.singled[rank]
        for rank, weight in self.weights.items():
            if weight >= ENTERS and len(self.singled) < MOST_OUTLIERS:
                self.singled.setdefault(rank)


def _troubled(record: Record) -> Iterator[int]:
    """Ranks of which a record says that something is the matter with them, not only how fast."""
    for spread in record.spread.values():
        yield from spread.bad_ranks
        if spread.odd is not None:
            yield from (rank for rank, _ in spread.odd.ranks)
    yield from (int(rank) for rank in record.facts.get("missing", "").split(",") if rank.isdigit())
