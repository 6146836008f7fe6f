"""Combine: what the ranks said about one step, made one record with the spread of each signal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import dist, isfinite, nan, sqrt
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

from sentinel.aggregate.rank_values import FOLDS, Said, Table, total, weighted_mean
from sentinel.model.record import WHOLE_RUN, Event, Odd, Record, Spread, place_of
from sentinel.model.record_batch import Row
from sentinel.signals.catalogue import Combine, combine_rule
from sentinel.signals.kl import SIGNALS_OF_KL, fact_of, kl_kind

Facts = Mapping[str, str]
_NO_FACTS: Facts = MappingProxyType({})


PART = "grad_norm_local"
"""The norm of the part of the gradient that one rank holds."""

WHOLE = "grad_norm"
"""The norm of the whole, which replicas have alike, though of several the highest is believed."""

MOST_ODD = 16
"""Ranks that are named of those that do not have what most have."""

NOISE = 1e-5
"""Share of a norm that it differs by, at most, where float32 numbers are added in another order."""


class Teller(NamedTuple):
    """A rank, or the lowest of those that said the same, and what all of them said."""

    rank: int
    last: Record
    names: Iterable[str]
    logged_as: Facts


def combine(  # noqa: PLR0913 - what was said, and what else has to be known of it
    event: Event,
    said: Mapping[int, Said],
    missing: Sequence[int],
    about: Facts = _NO_FACTS,
    world: int = 0,
    *,
    tables: Iterable[Table] = (),
) -> Record:
    """One record for the run from what each rank said; `missing` ranks are named in its facts.

    A rank is either in `said` or in one of `tables`. A signal's value is NaN as soon as one rank's
    is not finite, so that nothing averages a fault away; its spread is over the ranks that are
    finite. The step is that of the lowest rank that gave the trainer's own number, else of the
    lowest rank. Facts hold the name a signal was logged under, where that was another, and of what
    kind a KL is, told by the run's facts `about`.

    Where all `world` ranks gave the norm of their own part of the gradient, `grad_norm` is made of
    these, with the spread of the parts; of some of them it cannot be.
    """
    full = [table for table in tables if table.rows]
    tellers = sorted(_tellers(said, full), key=lambda teller: teller.rank)
    first = next((each for each in tellers if "global_step" in each.names), tellers[0]).last
    facts: dict[str, str] = {}
    for teller in reversed(tellers):
        facts |= teller.last.facts
        facts |= teller.logged_as
    if missing:
        facts["missing"] = ",".join(map(str, missing))
    values, spread = _over_ranks(said, full)
    count = len(said) + sum(len(table.rows) for table in full)
    if not missing and count >= world:
        _join_parts(values, spread, tellers)
    facts |= _kinds(values, facts, about)
    return Record(
        run=first.run,
        rank=WHOLE_RUN,
        step=first.step,
        time=max([teller.last.time for teller in tellers]),
        event=event,
        values=values,
        facts=facts,
        spread=spread,
        attempt=first.attempt,
        beat=first.beat,
    )


def _tellers(said: Mapping[int, Said], tables: Iterable[Table]) -> Iterator[Teller]:
    for rank, each in said.items():
        yield Teller(rank, each.last, each.values, each.logged_as)
    for table in tables:
        yield Teller(min(table.rows), table.last, table.names, table.logged_as)


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
    said: Mapping[int, Said], tables: Iterable[Table]
) -> tuple[dict[str, float], dict[str, Spread]]:
    """Value and spread of each signal that any of these ranks told of."""
    weights = {rank: each.weights for rank, each in said.items() if each.weights}
    values: dict[str, float] = {}
    spread: dict[str, Spread] = {}
    for name, ranks, numbers in _columns(_blocks(said, tables)):
        rule = combine_rule(name)
        over = _spread(ranks, numbers)
        if _alike(name):
            over = _with_odd(over, ranks, numbers)
        spread[name] = over
        if over.bad_ranks:
            values[name] = nan
        elif rule is not Combine.MEAN:
            values[name] = FOLDS[rule](numbers)
        elif weights:
            told = [weights[rank].get(name, 1.0) if rank in weights else 1.0 for rank in ranks]
            values[name] = weighted_mean(numbers, told)
        else:
            values[name] = over.mean
    return values, spread


class Block(NamedTuple):
    """Ranks in order, and by name the values of those who said the same names."""

    ranks: Sequence[int]
    columns: Mapping[str, Row]


def _blocks(said: Mapping[int, Said], tables: Iterable[Table]) -> list[Block]:
    """All that was said by ranks that said the same names, that of the lowest rank first."""
    books: dict[tuple[str, ...], dict[int, Row]] = {}
    for rank, each in said.items():
        books.setdefault(tuple(each.values), {})[rank] = tuple(each.values.values())
    for table in tables:
        books.setdefault(table.names, {}).update(table.rows)
    blocks = []
    for names, rows in books.items():
        ranks = sorted(rows)
        columns = zip(*[rows[rank] for rank in ranks], strict=True)
        blocks.append(Block(ranks, dict(zip(names, columns, strict=True))))
    return sorted(blocks, key=lambda block: block.ranks[0])


def _columns(blocks: Sequence[Block]) -> Iterator[tuple[str, Sequence[int], Row]]:
    """Each signal with the ranks, in order, that told of it, and their values.

    Signals are in the order of the lowest rank that told of them.
    """
    orders: dict[tuple[int, ...], tuple[Sequence[int], Callable[[Sequence[float]], Row]]] = {}
    for name in dict.fromkeys(chain.from_iterable(block.columns for block in blocks)):
        found = tuple(at for at, block in enumerate(blocks) if name in block.columns)
        if len(found) == 1:
            (block,) = (blocks[at] for at in found)
            yield name, block.ranks, block.columns[name]
            continue
        if found not in orders:
            ranks = [rank for at in found for rank in blocks[at].ranks]
            order = sorted(range(len(ranks)), key=ranks.__getitem__)
            orders[found] = [ranks[at] for at in order], itemgetter(*order)
        ranks_in_order, in_order = orders[found]
        told = list(chain.from_iterable(blocks[at].columns[name] for at in found))
        yield name, ranks_in_order, in_order(told)


def _join_parts(
    values: dict[str, float], spread: dict[str, Spread], tellers: Iterable[Teller]
) -> None:
    """Turn parts of the gradient into its norm, where no rank lacks its part."""
    whole = all(PART in teller.names for teller in tellers)
    if whole and WHOLE not in values:
        values[WHOLE], spread[WHOLE] = values.pop(PART), spread.pop(PART)


def _kinds(values: Mapping[str, float], logged_as: Facts, about: Facts) -> dict[str, str]:
    """Of what kind each KL is."""
    kinds = {n: kl_kind(logged_as.get(n, n), about) for n in SIGNALS_OF_KL if n in values}
    return {fact_of(name): kind.told() for name, kind in kinds.items() if kind and kind.known}


def _spread(ranks: Sequence[int], values: Sequence[float]) -> Spread:
    """The spread of the values of these ranks, which are in order."""
    bad: tuple[int, ...] = ()
    whole = total(values)
    # Of numbers that are all finite the sum may well not be.
    if not isfinite(whole) and not all(map(isfinite, values)):
        rows = list(zip(ranks, values, strict=True))
        bad = tuple(rank for rank, value in rows if not isfinite(value))
        ranks = [rank for rank, value in rows if isfinite(value)]
        values = [value for value in values if isfinite(value)]
        whole = total(values)
    if not values:
        return Spread(0, nan, nan, nan, nan, nan, WHOLE_RUN, WHOLE_RUN, bad)
    count = len(values)
    mean = whole / count
    # Squares of their own would be out of reach long before the numbers are.
    std = dist(values, [mean] * count) / sqrt(count)
    # On a tie the lowest rank is named, so that the answer does not wander.
    least, most = min(values), max(values)
    lowest, highest = ranks[values.index(least)], ranks[values.index(most)]
    return Spread(count, mean, least, most, whole, std, lowest, highest, bad)


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
