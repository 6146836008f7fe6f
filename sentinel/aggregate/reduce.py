"""Combine: what the ranks said about one step, made one record with the spread of each signal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import dist, isfinite, nan, sqrt
from operator import itemgetter
from types import MappingProxyType
from typing import NamedTuple

from sentinel.aggregate.rank_values import (
    COMBINE_FUNCTIONS,
    RankValues,
    RankValuesBatch,
    safe_sum,
    weighted_mean,
)
from sentinel.model.record import WHOLE_RUN, Event, RankMismatch, Record, Spread, host_key
from sentinel.model.record_batch import Row
from sentinel.signals.catalogue import CombineRule, get_combine_rule
from sentinel.signals.kl import KL_SIGNALS, infer_kl_kind, kl_kind_fact

Facts = Mapping[str, str]
_NO_FACTS: Facts = MappingProxyType({})


PARTIAL_GRAD_NORM = "grad_norm_local"
"""The norm of the part of the gradient that one rank holds."""

GRAD_NORM = "grad_norm"
"""The norm of the whole, which replicas have alike, though of several the highest is believed."""

MAX_LISTED_DIFFERING_RANKS = 16
"""Ranks that are named of those that do not have what most have."""

NORM_RELATIVE_TOLERANCE = 1e-5
"""Share of a norm that it differs by, at most, where float32 numbers are added in another order."""


class RankGroup(NamedTuple):
    """A rank, or the lowest of those that said the same, and what all of them said."""

    lowest_rank: int
    last_record: Record
    names: Iterable[str]
    logged_as: Facts


def combine_ranks(  # noqa: PLR0913 - what was said, and what else has to be known of it
    event: Event,
    values_by_rank: Mapping[int, RankValues],
    missing_ranks: Sequence[int],
    run_metadata: Facts = _NO_FACTS,
    world_size: int = 0,
    *,
    value_batches: Iterable[RankValuesBatch] = (),
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
    full = [table for table in value_batches if table.rows]
    tellers = sorted(_rank_groups(values_by_rank, full), key=lambda teller: teller.lowest_rank)
    first = next((each for each in tellers if "global_step" in each.names), tellers[0]).last_record
    facts: dict[str, str] = {}
    for teller in reversed(tellers):
        facts |= teller.last_record.attributes
        facts |= teller.logged_as
    if missing_ranks:
        facts["missing"] = ",".join(map(str, missing_ranks))
    values, spread = _combine_signals(values_by_rank, full)
    count = len(values_by_rank) + sum(len(table.rows) for table in full)
    if not missing_ranks and count >= world_size:
        _combine_partial_norms(values, spread, tellers)
    facts |= _kl_kind_metadata(values, facts, run_metadata)
    return Record(
        run=first.run,
        rank=WHOLE_RUN,
        step=first.step,
        time=max([teller.last_record.time for teller in tellers]),
        event=event,
        values=values,
        attributes=facts,
        spread=spread,
        attempt=first.attempt,
        step_index=first.step_index,
    )


def _rank_groups(
    values_by_rank: Mapping[int, RankValues], value_batches: Iterable[RankValuesBatch]
) -> Iterator[RankGroup]:
    for rank, each in values_by_rank.items():
        yield RankGroup(rank, each.last_record, each.values, each.logged_as)
    for table in value_batches:
        yield RankGroup(min(table.rows), table.last_record, table.names, table.logged_as)


def with_hosts(record: Record, host_by_rank: Mapping[int, str]) -> Record:
    """The record, its facts with the hosts of ranks that differ in what is to be the same.

    They go by the names that `place_of` gives; where all ranks are on one host, it is not told.
    """
    apart = {
        r
        for name, each in record.spread.items()
        if _must_match_across_ranks(name)
        for r in _differing_ranks(each)
    }
    if not apart or len({*host_by_rank.values()}) < 2:
        return record
    places = {host_key(rank): host_by_rank[rank] for rank in sorted(apart) if rank in host_by_rank}
    return replace(record, attributes={**record.attributes, **places})


def _must_match_across_ranks(name: str) -> bool:
    """Whether every rank should say the same of it."""
    return name == GRAD_NORM or get_combine_rule(name) is CombineRule.SAME


def _differing_ranks(spread: Spread) -> Iterable[int]:
    if spread.mismatch is not None:
        return [rank for rank, _ in spread.mismatch.differing_ranks]
    return (spread.min_rank, spread.max_rank) if spread.min < spread.max else ()


def _combine_signals(
    values_by_rank: Mapping[int, RankValues], value_batches: Iterable[RankValuesBatch]
) -> tuple[dict[str, float], dict[str, Spread]]:
    """Value and spread of each signal that any of these ranks told of."""
    weights = {rank: each.weights for rank, each in values_by_rank.items() if each.weights}
    values: dict[str, float] = {}
    spread: dict[str, Spread] = {}
    for name, ranks, numbers in _signal_columns(_column_blocks(values_by_rank, value_batches)):
        rule = get_combine_rule(name)
        over = _compute_spread(ranks, numbers)
        if _must_match_across_ranks(name):
            over = _with_mismatch(over, ranks, numbers)
        spread[name] = over
        if over.bad_ranks:
            values[name] = nan
        elif rule is not CombineRule.MEAN:
            values[name] = COMBINE_FUNCTIONS[rule](numbers)
        elif weights:
            told = [weights[rank].get(name, 1.0) if rank in weights else 1.0 for rank in ranks]
            values[name] = weighted_mean(numbers, told)
        else:
            values[name] = over.mean
    return values, spread


class ColumnBlock(NamedTuple):
    """Ranks in order, and by name the values of those who said the same names."""

    ranks: Sequence[int]
    columns: Mapping[str, Row]


def _column_blocks(
    values_by_rank: Mapping[int, RankValues], value_batches: Iterable[RankValuesBatch]
) -> list[ColumnBlock]:
    """All that was said by ranks that said the same names, that of the lowest rank first."""
    books: dict[tuple[str, ...], dict[int, Row]] = {}
    for rank, each in values_by_rank.items():
        books.setdefault(tuple(each.values), {})[rank] = tuple(each.values.values())
    for table in value_batches:
        books.setdefault(table.names, {}).update(table.rows)
    blocks = []
    for names, rows in books.items():
        ranks = sorted(rows)
        columns = zip(*[rows[rank] for rank in ranks], strict=True)
        blocks.append(ColumnBlock(ranks, dict(zip(names, columns, strict=True))))
    return sorted(blocks, key=lambda block: block.ranks[0])


def _signal_columns(blocks: Sequence[ColumnBlock]) -> Iterator[tuple[str, Sequence[int], Row]]:
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


def _combine_partial_norms(
    values: dict[str, float], spread: dict[str, Spread], rank_groups: Iterable[RankGroup]
) -> None:
    """Turn parts of the gradient into its norm, where no rank lacks its part."""
    whole = all(PARTIAL_GRAD_NORM in teller.names for teller in rank_groups)
    if whole and GRAD_NORM not in values:
        values[GRAD_NORM], spread[GRAD_NORM] = (
            values.pop(PARTIAL_GRAD_NORM),
            spread.pop(PARTIAL_GRAD_NORM),
        )


def _kl_kind_metadata(
    values: Mapping[str, float], logged_as: Facts, run_metadata: Facts
) -> dict[str, str]:
    """Of what kind each KL is."""
    kinds = {n: infer_kl_kind(logged_as.get(n, n), run_metadata) for n in KL_SIGNALS if n in values}
    return {
        kl_kind_fact(name): kind.serialize()
        for name, kind in kinds.items()
        if kind and kind.is_known
    }


def _compute_spread(ranks: Sequence[int], values: Sequence[float]) -> Spread:
    """The spread of the values of these ranks, which are in order."""
    bad: tuple[int, ...] = ()
    whole = safe_sum(values)
    # Of numbers that are all finite the sum may well not be.
    if not isfinite(whole) and not all(map(isfinite, values)):
        rows = list(zip(ranks, values, strict=True))
        bad = tuple(rank for rank, value in rows if not isfinite(value))
        ranks = [rank for rank, value in rows if isfinite(value)]
        values = [value for value in values if isfinite(value)]
        whole = safe_sum(values)
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


def _with_mismatch(spread: Spread, ranks: Sequence[int], values: Sequence[float]) -> Spread:
    """The spread with who is odd, of what is to be the same on every rank."""
    if spread.count < 3 or spread.min == spread.max:
        return spread
    rows = [row for row in zip(ranks, values, strict=True) if isfinite(row[1])]
    # What more than half have is what the one in the middle has.
    usual = sorted([value for _, value in rows])[spread.count // 2]
    for room in (0.0, NORM_RELATIVE_TOLERANCE * abs(usual)):
        odd = [(rank, value) for rank, value in rows if abs(value - usual) > room]
        if odd and 2 * len(odd) < spread.count:
            return replace(
                spread,
                mismatch=RankMismatch(usual, len(odd), tuple(odd[:MAX_LISTED_DIFFERING_RANKS])),
            )
    return spread
