"""Said: what ranks said of one step, in our own words: of each rank, or of many as a table."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from math import fsum, hypot, inf, isfinite, nan
from operator import itemgetter

from sentinel.model.record import Event, Record
from sentinel.model.record_batch import Row, Sheet
from sentinel.signals.catalogue import WEIGHT, Combine, combine_rule, held_out
from sentinel.signals.key_map import Dialect, dialect


def total(values: Sequence[float]) -> float:
    """The sum; infinite, or NaN, where the numbers are so large that there is none."""
    try:
        return fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


FOLDS: Mapping[Combine, Callable[[Sequence[float]], float]] = {
    Combine.SUM: total,
    Combine.MAX: max,
    Combine.MIN: min,
    Combine.NORM: lambda values: hypot(*values),
    Combine.SAME: itemgetter(0),
}


@dataclass(frozen=True, slots=True)
class Phrase:
    """What the keys of a record mean: the `names` of their signals, in the same order.

    It is `plain` where each key is another signal and says it in our unit, so that the numbers can
    be taken as they stand. `logged_as` are the keys that are not our names.
    """

    names: tuple[str, ...]
    plain: bool
    logged_as: Mapping[str, str]


# What one rank says at one step, it says at each, and so do the others.
@lru_cache(maxsize=256)
def phrase(keys: tuple[str, ...], evaluated: bool, spoken: Dialect) -> Phrase:
    """What these keys mean in that dialect, of training, or `evaluated` on held-out data."""
    words = [spoken.words[key] for key in keys]
    names = [held_out(word.name) if evaluated else word.name for word in words]
    told = {name: key for name, key in zip(names, keys, strict=True) if name != key}
    as_it_stands = all(word.factor == 1.0 and not word.zero_is_none for word in words)
    return Phrase(tuple(names), as_it_stands and len({*names}) == len(names), told)


@dataclass(slots=True)
class Said:
    """All that one rank said about one step, several words on one signal folded by its rule.

    `last` is its last record: its step and facts are the rank's last word, its time the newest of
    all its words. `weights` are those that are not 1. `logged_as` holds the names that were not
    ours, since some tell a unit ("objective/kl" is a sum).
    """

    last: Record
    values: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    logged_as: dict[str, str] = field(default_factory=dict)

    def add(self, record: Record, spoken: Dialect | None = None) -> None:
        """Fold one more record of the same rank, step and event in, its keys in that dialect."""
        newest = max(self.last.time, record.time)
        self.last = record if record.time == newest else replace(record, time=newest)
        spoken = spoken or dialect({})
        weight = record.values.get(WEIGHT, 1.0)
        told = phrase(tuple(record.values), record.event is Event.EVAL, spoken)
        if told.plain and weight == 1.0 and self.values.keys().isdisjoint(told.names):
            ours = zip(told.names, record.values.values(), strict=True)
            self.values.update(ours if told.logged_as else record.values)
            self.values.pop(WEIGHT, None)
            self.logged_as.update(told.logged_as)
            return
        for name, (key, value) in zip(told.names, record.values.items(), strict=True):
            measured = None if key == WEIGHT else spoken.words[key].measured(value)
            if measured is not None:
                self._fold(name, measured, weight)
                if name != key:
                    self.logged_as[name] = key

    def leave_out(self, names: Iterable[str]) -> None:
        """Forget what was said of these signals."""
        for name in names:
            for book in (self.values, self.weights, self.logged_as):
                book.pop(name, None)

    def _fold(self, name: str, value: float, weight: float) -> None:
        before = self.values.get(name)
        if before is not None:
            known = self.weights.get(name, 1.0)
            value = folded(combine_rule(name), (before, value), (known, weight))
            weight += known
        self.values[name] = value
        if weight != 1.0 or name in self.weights:
            self.weights[name] = weight


@dataclass(slots=True)
class Table:
    """What ranks said about one step in the same words, each another signal and of weight 1.

    `last` is what their newest record has in common with that of the others; its time is the
    newest. There is a row for each rank, with a value for each of `names`.
    """

    names: tuple[str, ...]
    logged_as: Mapping[str, str]
    last: Record
    rows: dict[int, Row]

    def leave(self, rank: int) -> Said:
        """Take that rank's row out: it goes on alone."""
        values = dict(zip(self.names, self.rows.pop(rank), strict=True))
        return Said(replace(self.last, rank=rank), values, {}, dict(self.logged_as))


def tabled(sheet: Sheet, spoken: Dialect) -> Table | None:
    """That sheet in our own words; None where its numbers cannot be taken as they stand."""
    told = phrase(sheet.names, False, spoken)
    if not told.plain or WEIGHT in sheet.names:
        return None
    last = Record(
        run=sheet.run,
        rank=sheet.ranks[0],
        step=sheet.step,
        time=max(sheet.times),
        attempt=sheet.attempt,
        beat=sheet.beat,
    )
    rows = dict(zip(sheet.ranks, sheet.rows, strict=True))
    return Table(told.names, told.logged_as, last, rows)


def folded(rule: Combine, values: Sequence[float], weights: Sequence[float]) -> float:
    """Those values as one, by that rule; NaN as soon as one is not finite."""
    if not all(map(isfinite, values)):
        return nan
    return weighted_mean(values, weights) if rule is Combine.MEAN else FOLDS[rule](values)


def weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    """The mean by weights; the plain one, where these come to nothing that can be divided by."""
    whole = total(weights)
    if not 0.0 < whole < inf:
        return total(values) / len(values)
    return total([v * w for v, w in zip(values, weights, strict=True)]) / whole
