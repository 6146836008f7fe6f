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
from sentinel.model.record_batch import RecordBatch
from sentinel.transport.ring_layout import NORMAL_OUTCOMES

MAX_RANKS = 65_536
"""Ranks that are followed; the first ones seen."""

MAX_OUTLIER_RANKS = 16
"""Ranks beyond the limit that are shown since they stand out."""

WEIGHT_DECAY_STEPS = 64
"""Steps of the run in which what was said of a rank fades to a third."""

SHOW_AT_WEIGHT, HIDE_BELOW_WEIGHT = WEIGHT_DECAY_STEPS / 4, WEIGHT_DECAY_STEPS / 16
"""Weight from which a rank is shown, and below which no more: that of a rank which is the slowest
in a quarter of the steps, and in a sixteenth."""

MAX_WEIGHTED_RANKS = 64
"""Ranks whose weight is remembered, the heaviest."""

STRAGGLER_SIGNALS = ("step_time", "data_wait", "generation_time")
"""Times by which a rank may be the slowest."""


class RankState(NamedTuple):
    """What is known of one rank now. Times in seconds, `last_step` since the epoch."""

    up: bool = True
    step: int = 0
    step_time: float = nan
    last_step: float = nan


@dataclass(slots=True)
class RankSelection:
    """Of the ranks of one attempt `limit` are shown; of none, none."""

    max_shown: int = 64
    states: dict[int, RankState] = field(default_factory=dict)
    failed: dict[int, None] = field(default_factory=dict)
    """Ranks that did not end well, in the order they fell."""
    weights: dict[int, float] = field(default_factory=dict)
    """How much speaks for a rank to be looked at."""
    outliers: dict[int, None] = field(default_factory=dict)
    """Ranks that were shown since enough spoke for it, and that enough still speaks for."""
    lowest_ranks: list[int] = field(default_factory=list)
    """The ranks that are shown in any case; empty where that has to be found out anew."""
    hidden_count: int = 0
    """Of a copy: how many ranks it was made without."""

    def clear(self) -> None:
        """Forget them: another attempt has its own."""
        for book in (self.states, self.failed, self.weights, self.outliers, self.lowest_ranks):
            book.clear()

    def update(self, record: Record) -> None:
        """Take over what a record of a single rank says of it."""
        rank, event = record.rank, record.event
        known = self._state_of(rank)
        if known is None:
            return
        if event is Event.STEP:
            up, _, seconds, _ = known
            seconds = record.values.get("step_time", seconds)
            known = RankState(up, record.step, seconds, record.time)
        elif event is Event.START:
            known = known._replace(up=True)
            self.failed.pop(rank, None)
        elif event is Event.STOP:
            known = known._replace(up=False)
            if record.attributes.get("outcome", "") not in NORMAL_OUTCOMES:
                self.failed[rank] = None
        self.states[rank] = known

    def update_batch(self, batch: RecordBatch) -> None:
        """Take over what that sheet says of each of its ranks."""
        timed = batch.names.index("step_time") if "step_time" in batch.names else None
        for rank, time, row in zip(batch.ranks, batch.times, batch.rows, strict=True):
            known = self._state_of(rank)
            if known is not None:
                seconds = known.step_time if timed is None else row[timed]
                self.states[rank] = RankState(known.up, batch.step, seconds, time)

    def update_weights(self, record: Record) -> None:
        """Take over what a record of the run says of its ranks: who is slowest, lost, or odd."""
        if len(self.states) <= self.max_shown:
            return
        fade = 1.0 - 1.0 / WEIGHT_DECAY_STEPS
        self.weights = {rank: weight * fade for rank, weight in self.weights.items()}
        for name in STRAGGLER_SIGNALS:
            spread = record.spread.get(name)
            if spread is not None and spread.max > spread.mean:
                self._add_weight(spread.max_rank, 1.0)
        for rank in islice(_flagged_ranks(record), MAX_OUTLIER_RANKS):
            self._add_weight(rank, float(WEIGHT_DECAY_STEPS))
        if len(self.weights) > MAX_WEIGHTED_RANKS:
            kept = sorted(self.weights, key=lambda rank: -self.weights[rank])[:MAX_WEIGHTED_RANKS]
            self.weights = {rank: self.weights[rank] for rank in kept}
        self._update_outliers()

    def select(self, required: Iterable[int] = ()) -> dict[int, RankState]:
        """The ranks to show, in order; `named` are those that must be, if there is room for any."""
        if len(self.states) <= self.max_shown:
            return dict(sorted(self.states.items()))
        if not self.max_shown:
            return {}
        if not self.lowest_ranks:
            self.lowest_ranks = nsmallest(self.max_shown, self.states)
        usual, outliers = set(self.lowest_ranks), set[int]()
        for rank in chain(required, self.failed, self.outliers):
            if rank in self.states and rank not in usual and len(outliers) < MAX_OUTLIER_RANKS:
                outliers.add(rank)
        return {rank: self.states[rank] for rank in (*self.lowest_ranks, *sorted(outliers))}

    def copy(self, required: Iterable[int] = ()) -> RankSelection:
        """Those that are shown, untouched by what comes later."""
        shown = self.select(required)
        return RankSelection(len(shown), shown, hidden_count=len(self.states) - len(shown))

    def _state_of(self, rank: int) -> RankState | None:
        """What is known of that rank, which may be new; None where it is one too many."""
        known = self.states.get(rank)
        if known is None and len(self.states) < MAX_RANKS:
            self.lowest_ranks.clear()
            return RankState()
        return known

    def _add_weight(self, rank: int, weight: float) -> None:
        self.weights[rank] = min(self.weights.get(rank, 0.0) + weight, float(WEIGHT_DECAY_STEPS))

    def _update_outliers(self) -> None:
        for rank in [r for r in self.outliers if self.weights.get(r, 0.0) < HIDE_BELOW_WEIGHT]:
            del self.outliers[rank]
        for rank, weight in self.weights.items():
            if weight >= SHOW_AT_WEIGHT and len(self.outliers) < MAX_OUTLIER_RANKS:
                self.outliers.setdefault(rank)


def _flagged_ranks(record: Record) -> Iterator[int]:
    """Ranks of which a record says that something is the matter with them, not only how fast."""
    for spread in record.spread.values():
        yield from spread.bad_ranks
        if spread.mismatch is not None:
            yield from (rank for rank, _ in spread.mismatch.differing_ranks)
    yield from (
        int(rank) for rank in record.attributes.get("missing", "").split(",") if rank.isdigit()
    )
