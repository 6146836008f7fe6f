"""Combine: what the ranks said about one step, made one record with the spread of each signal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from math import fsum, hypot, inf, isfinite, nan, sqrt
from operator import itemgetter
from types import MappingProxyType

from sentinel.dialect import Dialect, dialect
from sentinel.kl import SIGNALS_OF_KL, fact_of, kl_kind
from sentinel.record import WHOLE_RUN, Event, Record, Spread
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


@dataclass(slots=True)
class Said:
    """All that one rank said about one step, several words on one signal folded by its rule.

    `last` is its newest record: its step, time and facts are the rank's last word. `logged_as`
    holds the names that were not ours, since some tell a unit ("objective/kl" is a sum).
    """

    last: Record
    values: dict[str, float] = field(default_factory=dict)
    weights: dict[str, float] = field(default_factory=dict)
    logged_as: dict[str, str] = field(default_factory=dict)

    def add(self, record: Record, spoken: Dialect | None = None) -> None:
        """Fold one more record of the same rank, step and event in, its keys in that dialect."""
        self.last = record
        words = (spoken or dialect({})).words
        weight = record.values.get(WEIGHT, 1.0)
        evaluated = record.event is Event.EVAL
        for key, value in record.values.items():
            if key == WEIGHT:
                continue
            word = words[key]
            measured = word.measured(value)
            if measured is None:
                continue
            name = held_out(word.name) if evaluated else word.name
            if name != key:
                self.logged_as[name] = key
            self._fold(name, measured, weight)

    def leave_out(self, names: Iterable[str]) -> None:
        """Forget what was said of these signals."""
        for name in names:
            for book in (self.values, self.weights, self.logged_as):
                book.pop(name, None)

    def _fold(self, name: str, value: float, weight: float) -> None:
        before = self.values.get(name)
        if before is None:
            self.values[name], self.weights[name] = value, weight
            return
        known = self.weights[name]
        self.weights[name] = known + weight
        self.values[name] = _folded(combine_rule(name), (before, value), (known, weight))


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
    last = {rank: ranks[rank].last for rank in order}
    first = last[next((r for r in order if "global_step" in ranks[r].values), order[0])]
    facts: dict[str, str] = {}
    for rank in reversed(order):
        facts |= {**last[rank].facts, **ranks[rank].logged_as}
    if missing:
        facts["missing"] = ",".join(map(str, missing))
    values: dict[str, float] = {}
    spread: dict[str, Spread] = {}
    for name in dict.fromkeys(name for rank in order for name in ranks[rank].values):
        told = [rank for rank in order if name in ranks[rank].values]
        numbers = [ranks[rank].values[name] for rank in told]
        weights = [ranks[rank].weights[name] for rank in told]
        values[name] = _folded(combine_rule(name), numbers, weights)
        spread[name] = _spread(told, numbers)
    if not missing and len(ranks) >= world:
        _join_parts(values, spread, ranks)
    facts |= _kinds(values, facts, about)
    return Record(
        run=first.run,
        rank=WHOLE_RUN,
        step=first.step,
        time=max(record.time for record in last.values()),
        event=event,
        values=values,
        facts=facts,
        spread=spread,
        attempt=first.attempt,
        beat=first.beat,
    )


def _join_parts(
    values: dict[str, float], spread: dict[str, Spread], ranks: Mapping[int, Said]
) -> None:
    """Turn parts of the gradient into its norm, where no rank lacks its part."""
    whole = all(PART in said.values for said in ranks.values())
    if whole and "grad_norm" not in values:
        values["grad_norm"], spread["grad_norm"] = values.pop(PART), spread.pop(PART)


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
    if not all(map(isfinite, values)):
        rows = list(zip(ranks, values, strict=True))
        bad = tuple(rank for rank, value in rows if not isfinite(value))
        ranks = [rank for rank, value in rows if isfinite(value)]
        values = [value for value in values if isfinite(value)]
    if not values:
        return Spread(0, nan, nan, nan, nan, nan, WHOLE_RUN, WHOLE_RUN, bad)
    total = _total(values)
    mean = total / len(values)
    # Squares of their own would be out of reach long before the numbers are.
    std = hypot(*[value - mean for value in values]) / sqrt(len(values))
    # On a tie the lowest rank is named, so that the answer does not wander.
    least, most = min(values), max(values)
    lowest, highest = ranks[values.index(least)], ranks[values.index(most)]
    return Spread(len(values), mean, least, most, total, std, lowest, highest, bad)
