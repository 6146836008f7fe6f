"""Combine: what the ranks said about one step, made one record with the spread of each signal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import islice
from math import dist, fsum, hypot, inf, isfinite, nan, sqrt
from operator import itemgetter
from types import MappingProxyType

from sentinel.dialect import Dialect, dialect
from sentinel.kl import SIGNALS_OF_KL, fact_of, kl_kind
from sentinel.record import WHOLE_RUN, Event, Odd, Record, Spread, place_of
from sentinel.signals import WEIGHT, Combine, combine_rule, held_out

Facts = Mapping[str, str]
_NO_FACTS: Facts = MappingProxyType({})


def _total(values: Sequence[float]) -> float:
    """The sum; infinite, or NaN, where the numbers are so large that there is none."""
    try:
        return fsum(values)
    except (OverflowError, ValueError):
        return sum(values)


_FOLDS: Mapping[Combine, Callable[[Sequence[float]], float]] = {
    Combine.SUM: _total,
    Combine.MAX: max,
    Combine.MIN: min,
    Combine.NORM: lambda values: hypot(*values),
    Combine.SAME: itemgetter(0),
}


PART = "grad_norm_local"
"""The norm of the part of the gradient that one rank holds."""

WHOLE = "grad_norm"
"""The norm of the whole, which replicas have alike, though of several the highest is believed."""

MOST_ODD = 16
"""Ranks that are named of those that do not have what most have."""

NOISE = 1e-5
"""Share of a norm that it differs by, at most, where float32 numbers are added in another order."""


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
def _phrase(keys: tuple[str, ...], evaluated: bool, spoken: Dialect) -> Phrase:
    words = [spoken.words[key] for key in keys]
    names = [held_out(word.name) if evaluated else word.name for word in words]
    told = {name: key for name, key in zip(names, keys, strict=True) if name != key}
    as_it_stands = all(word.factor == 1.0 and not word.zero_is_none for word in words)
    return Phrase(tuple(names), as_it_stands and len({*names}) == len(names), told)


@dataclass(slots=True)
class Said:
    """All that one rank said about one step, several words on one signal folded by its rule.

    `last` is its newest record: its step, time and facts are the rank's last word. `weights` are
    those that are not 1. `logged_as` holds the names that were not ours, since some tell a unit
    ("objective/kl" is a sum).
    """

    last: Record
    values: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    logged_as: dict[str, str] = field(default_factory=dict)

    def add(self, record: Record, spoken: Dialect | None = None) -> None:
        """Fold one more record of the same rank, step and event in, its keys in that dialect."""
        self.last = record
        spoken = spoken or dialect({})
        weight = record.values.get(WEIGHT, 1.0)
        phrase = _phrase(tuple(record.values), record.event is Event.EVAL, spoken)
        if phrase.plain and weight == 1.0 and self.values.keys().isdisjoint(phrase.names):
            ours = zip(phrase.names, record.values.values(), strict=True)
            self.values.update(ours if phrase.logged_as else record.values)
            self.values.pop(WEIGHT, None)
            self.logged_as.update(phrase.logged_as)
            return
        for name, (key, value) in zip(phrase.names, record.values.items(), strict=True):
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
            value = _folded(combine_rule(name), (before, value), (known, weight))
            weight += known
        self.values[name] = value
        if weight != 1.0 or name in self.weights:
            self.weights[name] = weight


def combine(
    event: Event,
    ranks: Mapping[int, Said],
    missing: Sequence[int],
    about: Facts = _NO_FACTS,
    world: int = 0,
) -> Record:
    """One record for the run from what each rank said; `missing` ranks are named in its facts.

    A signal's value is NaN as soon as one rank's is not finite, so that nothing averages a fault
    away; its spread is over the ranks that are finite. The step is that of the lowest rank that
    gave the trainer's own number, else of the lowest rank. Facts hold the name a signal was logged
    under, where that was another, and of what kind a KL is, told by the run's facts `about`.

    Where all `world` ranks gave the norm of their own part of the gradient, `grad_norm` is made of
    these, with the spread of the parts; of some of them it cannot be.
    """
    order = sorted(ranks)
    tellers = [ranks[rank] for rank in order]
    first = next((said for said in tellers if "global_step" in said.values), tellers[0]).last
    facts: dict[str, str] = {}
    for said in reversed(tellers):
        facts |= said.last.facts
        facts |= said.logged_as
    if missing:
        facts["missing"] = ",".join(map(str, missing))
    values, spread = _over_ranks(order, tellers)
    if not missing and len(ranks) >= world:
        _join_parts(values, spread, tellers)
    facts |= _kinds(values, facts, about)
    return Record(
        run=first.run,
        rank=WHOLE_RUN,
        step=first.step,
        time=max([said.last.time for said in tellers]),
        event=event,
        values=values,
        facts=facts,
        spread=spread,
        attempt=first.attempt,
        beat=first.beat,
    )


def placed(record: Record, hosts: Mapping[int, str]) -> Record:
    """The record, its facts with the hosts of ranks that differ in what is to be the same.

    They go by the names that `place_of` gives; where all ranks are on one host, it is not told.
    """
    apart = {r for name, each in record.spread.items() if _alike(name) for r in _differing(each)}
    if not apart or len({*hosts.values()}) < 2:
        return record
    places = {place_of(rank): hosts[rank] for rank in sorted(apart) if rank in hosts}
    return replace(record, facts={**record.facts, **places})


def _alike(name: str) -> bool:
    """Whether every rank should say the same of it."""
    return name == WHOLE or combine_rule(name) is Combine.SAME


def _differing(spread: Spread) -> Iterable[int]:
    if spread.odd is not None:
        return [rank for rank, _ in spread.odd.ranks]
    return (spread.min_rank, spread.max_rank) if spread.min < spread.max else ()


def _over_ranks(
    order: Sequence[int], tellers: Sequence[Said]
) -> tuple[dict[str, float], dict[str, Spread]]:
    """Value and spread of each signal that any of these ranks, which are in order, told of."""
    books = [said.values for said in tellers]
    weights = [said.weights for said in tellers]
    weighed = any(weights)
    values: dict[str, float] = {}
    spread: dict[str, Spread] = {}
    for name in _names(books):
        told, numbers = order, [book[name] for book in books if name in book]
        mine = weights
        if len(numbers) < len(order):
            told = [rank for rank, book in zip(order, books, strict=True) if name in book]
            mine = [each for each, book in zip(weights, books, strict=True) if name in book]
        rule = combine_rule(name)
        over = _spread(told, numbers)
        if _alike(name):
            over = _with_odd(over, told, numbers)
        spread[name] = over
        if over.bad_ranks:
            values[name] = nan
        elif rule is not Combine.MEAN:
            values[name] = _FOLDS[rule](numbers)
        elif weighed:
            values[name] = _weighted_mean(numbers, [each.get(name, 1.0) for each in mine])
        else:
            values[name] = over.mean
    return values, spread


def _names(books: Sequence[Mapping[str, float]]) -> Iterable[str]:
    """Every signal that is told of, in the order of the lowest rank that told of it."""
    names = dict.fromkeys(books[0])
    for book in islice(books, 1, None):
        if book.keys() != names.keys():
            names |= dict.fromkeys(book)
    return names


def _join_parts(
    values: dict[str, float], spread: dict[str, Spread], tellers: Sequence[Said]
) -> None:
    """Turn parts of the gradient into its norm, where no rank lacks its part."""
    whole = all(PART in said.values for said in tellers)
    if whole and WHOLE not in values:
        values[WHOLE], spread[WHOLE] = values.pop(PART), spread.pop(PART)


def _kinds(values: Mapping[str, float], logged_as: Facts, about: Facts) -> dict[str, str]:
    """Of what kind each KL is."""
    kinds = {n: kl_kind(logged_as.get(n, n), about) for n in SIGNALS_OF_KL if n in values}
    return {fact_of(name): kind.told() for name, kind in kinds.items() if kind and kind.known}


def _folded(rule: Combine, values: Sequence[float], weights: Sequence[float]) -> float:
    if not all(map(isfinite, values)):
        return nan
    return _weighted_mean(values, weights) if rule is Combine.MEAN else _FOLDS[rule](values)


def _weighted_mean(values: Sequence[float], weights: Sequence[float]) -> float:
    total = _total(weights)
    if not 0.0 < total < inf:
        return _total(values) / len(values)
    return _total([v * w for v, w in zip(values, weights, strict=True)]) / total


def _spread(ranks: Sequence[int], values: Sequence[float]) -> Spread:
    """The spread of the values of these ranks, which are in order."""
    bad: tuple[int, ...] = ()
    total = _total(values)
    # Of numbers that are all finite the sum may well not be.
    if not isfinite(total) and not all(map(isfinite, values)):
        rows = list(zip(ranks, values, strict=True))
        bad = tuple(rank for rank, value in rows if not isfinite(value))
        ranks = [rank for rank, value in rows if isfinite(value)]
        values = [value for value in values if isfinite(value)]
        total = _total(values)
    if not values:
        return Spread(0, nan, nan, nan, nan, nan, WHOLE_RUN, WHOLE_RUN, bad)
    count = len(values)
    mean = total / count
    # Squares of their own would be out of reach long before the numbers are.
    std = dist(values, [mean] * count) / sqrt(count)
    # On a tie the lowest rank is named, so that the answer does not wander.
    least, most = min(values), max(values)
    lowest, highest = ranks[values.index(least)], ranks[values.index(most)]
    return Spread(count, mean, least, most, total, std, lowest, highest, bad)


def _with_odd(spread: Spread, ranks: Sequence[int], values: Sequence[float]) -> Spread:
    """The spread with who is odd, of what is to be the same on every rank."""
    if spread.count < 3 or spread.min == spread.max:
        return spread
    rows = [row for row in zip(ranks, values, strict=True) if isfinite(row[1])]
    # What more than half have is what the one in the middle has.
    usual = sorted([value for _, value in rows])[spread.count // 2]
    for room in (0.0, NOISE * abs(usual)):
        odd = [(rank, value) for rank, value in rows if abs(value - usual) > room]
        if odd and 2 * len(odd) < spread.count:
            return replace(spread, odd=Odd(usual, len(odd), tuple(odd[:MOST_ODD])))
    return spread
