"""State of every rank, and the selection of ranks that are shown singly.

The state of every rank is stored: a few hundred bytes a rank, about a microsecond a record. Shown
are the lowest ranks up to a limit, which makes the selection stable, and beyond it the outliers:
ranks of open incidents, failed ranks, and ranks with a weight. A rank gains weight whenever a
record of the run marks it as slowest, missing or deviating, and the weight decays. A rank is shown
at a higher weight than the one at which it is hidden again, so that series appear and disappear
seldom.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from heapq import nsmallest
from itertools import chain, islice, repeat
from math import nan
from typing import NamedTuple

from sentinel.model.record import Event, Record
from sentinel.model.record_batch import RecordBatch, unpack_matrix
from sentinel.transport.ring_layout import NORMAL_OUTCOMES

MAX_RANKS = 131_072
"""Number of ranks whose state is stored: the first ones seen."""

MAX_OUTLIER_RANKS = 16
"""Number of outliers shown beyond the limit."""

WEIGHT_DECAY_STEPS = 64
"""Number of steps in which a weight decays to about a third (1/e)."""

SHOW_AT_WEIGHT, HIDE_BELOW_WEIGHT = WEIGHT_DECAY_STEPS / 4, WEIGHT_DECAY_STEPS / 16
"""Weights at which an outlier is shown and hidden. They correspond to a rank that is the slowest in
a quarter, and in a sixteenth, of the steps."""

MAX_WEIGHTED_RANKS = 64
"""Number of ranks whose weight is stored: the heaviest."""

STRAGGLER_SIGNALS = ("step_time", "data_wait", "compute_time", "generation_time")
"""Signals by which a rank may be the slowest."""


class RankState(NamedTuple):
    """Newest state of one rank. Seconds; `last_step_time` is since the epoch."""

    up: bool = True
    step: int = 0
    step_time: float = nan
    last_step_time: float = nan


@dataclass(slots=True)
class RankSelection:
    """The ranks of one attempt; `max_shown` and some outliers are shown, or none if it is 0."""

    max_shown: int = 64
    states: dict[int, RankState] = field(default_factory=dict)
    failed: dict[int, None] = field(default_factory=dict)
    """Ranks that ended abnormally, in the order of their ends."""
    weights: dict[int, float] = field(default_factory=dict)
    """How often, lately, records of the run marked the rank."""
    outliers: dict[int, None] = field(default_factory=dict)
    """Ranks shown for their weight."""
    lowest_ranks: list[int] = field(default_factory=list)
    """Cache of the lowest `max_shown` ranks; empty if it has to be computed again."""
    hidden_count: int = 0
    """In a copy: the number of ranks that it leaves out."""

    def clear(self) -> None:
        """Remove all ranks, at the start of another attempt."""
        for each in (self.states, self.failed, self.weights, self.outliers, self.lowest_ranks):
            each.clear()

    def update(self, record: Record) -> None:
        """Apply a record of a single rank."""
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
        """Apply the step records of several ranks."""
        if not self.states.keys() >= {*batch.ranks}:
            for record in batch.records():
                self.update(record)
            return
        known = [*map(self.states.__getitem__, batch.ranks)]
        up = [state.up for state in known]
        if "step_time" in batch.names:
            column = batch.names.index("step_time")
            seconds = unpack_matrix(batch.matrix)[column :: len(batch.names)].tolist()
        else:
            seconds = [state.step_time for state in known]
        fields = zip(up, repeat(batch.step), seconds, batch.times)
        self.states.update(zip(batch.ranks, map(RankState._make, fields), strict=True))

    def update_weights(self, record: Record) -> None:
        """Apply a record of the run: its slowest, missing and deviating ranks gain weight."""
        if len(self.states) <= self.max_shown:
            return
        decay = 1.0 - 1.0 / WEIGHT_DECAY_STEPS
        self.weights = {rank: weight * decay for rank, weight in self.weights.items()}
        for name in STRAGGLER_SIGNALS:
            spread = record.spread.get(name)
            if spread is not None and spread.max > spread.mean:
                self._add_weight(spread.max_rank, 1.0)
        for rank in islice(_flagged_ranks(record), MAX_OUTLIER_RANKS):
            self._add_weight(rank, float(WEIGHT_DECAY_STEPS))
        if len(self.weights) > MAX_WEIGHTED_RANKS:
            heaviest = sorted(self.weights, key=lambda rank: -self.weights[rank])
            self.weights = {rank: self.weights[rank] for rank in heaviest[:MAX_WEIGHTED_RANKS]}
        self._update_outliers()

    def select(self, required: Iterable[int] = ()) -> dict[int, RankState]:
        """The ranks to show, in order; `required` ranks are the first of the outliers."""
        if len(self.states) <= self.max_shown:
            return dict(sorted(self.states.items()))
        if not self.max_shown:
            return {}
        if not self.lowest_ranks:
            self.lowest_ranks = nsmallest(self.max_shown, self.states)
        lowest, outliers = set(self.lowest_ranks), set[int]()
        for rank in chain(required, self.failed, self.outliers):
            if rank in self.states and rank not in lowest and len(outliers) < MAX_OUTLIER_RANKS:
                outliers.add(rank)
        return {rank: self.states[rank] for rank in (*self.lowest_ranks, *sorted(outliers))}

    def copy(self, required: Iterable[int] = ()) -> RankSelection:
        """A copy of the shown ranks that later updates do not change."""
        shown = self.select(required)
        return RankSelection(len(shown), shown, hidden_count=len(self.states) - len(shown))

    def _state_of(self, rank: int) -> RankState | None:
        """State of that rank, which may be new; None beyond `MAX_RANKS`."""
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
    """Ranks that a record marks as non-finite, deviating or missing."""
    for spread in record.spread.values():
        yield from spread.bad_ranks
        if spread.mismatch is not None:
            yield from (rank for rank, _ in spread.mismatch.differing_ranks)
    yield from (
        int(rank) for rank in record.attributes.get("missing", "").split(",") if rank.isdigit()
    )
