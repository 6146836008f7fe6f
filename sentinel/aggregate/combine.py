"""Combines the values of all ranks at one step into one record, with the spread of each signal."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from math import dist, isfinite, nan, sqrt
from operator import itemgetter
from typing import NamedTuple

from sentinel.aggregate.combine_rules import (
    COMBINE_FUNCTIONS,
    safe_sum,
    sum_nonfinite,
    weighted_mean,
)
from sentinel.aggregate.rank_values import RankValues
from sentinel.model.record import WHOLE_RUN, Event, RankMismatch, Record, Spread, host_key
from sentinel.model.record_batch import unpack_matrix, unpack_row
from sentinel.signals.catalogue import CombineRule, get_combine_rule
from sentinel.signals.kl import KL_SIGNALS, kl_kind_attributes
from sentinel.signals.run_metadata import RunMetadata

_NO_METADATA = RunMetadata()

PARTIAL_GRAD_NORM = "grad_norm_local"
"""Norm of the part of the gradient that one rank holds."""

GRAD_NORM = "grad_norm"
"""Norm of the whole gradient. Replicas have the same; the run's value is the highest."""

MAX_LISTED_DIFFERING_RANKS = 64
"""Ranks that a mismatch lists; it counts all of them."""

RANK_VALUE_SIGNALS = frozenset({"step_time", "loss", GRAD_NORM, PARTIAL_GRAD_NORM})
"""Signals of which the value of each rank is stored, to find the rank that is slow or wrong."""

MAX_RANKS_WITH_VALUES = 64
"""Ranks above which only their spread is stored."""

NORM_RELATIVE_TOLERANCE = 1e-5
"""Relative difference that float32 norms may have if they are summed in another order."""


def combine_ranks(
    event: Event,
    tables: Iterable[RankValues],
    missing_ranks: Sequence[int] = (),
    metadata: RunMetadata = _NO_METADATA,
    world_size: int = 0,
) -> Record:
    """One record of the run from the values of its ranks, each of which has one row in `tables`.

    If the value of any rank is not finite, the signal's value is infinite or NaN as the sum of
    these values, so that averaging hides no fault; its spread covers the ranks with finite values.
    The step is that of the lowest rank that logged the trainer's own number (`global_step`), else
    of the lowest rank. Attributes name the missing ranks, the key that a signal was logged under if
    it differs, the kind of each KL, and the hosts that `with_hosts` adds.

    If all `world_size` ranks logged the norm of their part of the gradient, these are combined into
    `grad_norm`, with the spread of the parts.
    """
    tables = sorted([table for table in tables if table.rows], key=lambda table: min(table.rows))
    first = next((each for each in tables if "global_step" in each.names), tables[0]).last_record
    attributes: dict[str, str] = {}
    for table in reversed(tables):
        attributes |= table.last_record.attributes
        attributes |= table.logged_as
    if missing_ranks:
        attributes["missing"] = ",".join(map(str, missing_ranks))
    is_single = len(tables) == 1 and len(tables[0].rows) == 1 and not tables[0].weights
    values, spread = _single_signals(tables[0]) if is_single else _combine_signals(tables)
    if not missing_ranks and sum(len(table.rows) for table in tables) >= world_size:
        _combine_partial_norms(values, spread, tables)
    kl_keys = {name: attributes.get(name, name) for name in KL_SIGNALS if name in values}
    attributes |= kl_kind_attributes(kl_keys, metadata.metadata)
    record = Record(
        run=first.run,
        rank=WHOLE_RUN,
        step=first.step,
        time=max([table.last_record.time for table in tables]),
        event=event,
        values=values,
        attributes=attributes,
        spread=spread,
        attempt=first.attempt,
        step_index=first.step_index,
    )
    return with_hosts(record, metadata.host_by_rank)


def with_hosts(record: Record, host_by_rank: Mapping[int, str]) -> Record:
    """The record, with the hosts of ranks that differ in a signal that all ranks should share.

    They are attributes named by `host_key`. On a single host the record is unchanged.
    """
    differing = {
        rank
        for name, spread in record.spread.items()
        if _must_match_across_ranks(name)
        for rank in _differing_ranks(spread)
    }
    if not differing or len({*host_by_rank.values()}) < 2:
        return record
    hosts = {host_key(r): host_by_rank[r] for r in sorted(differing) if r in host_by_rank}
    return replace(record, attributes={**record.attributes, **hosts})


def _must_match_across_ranks(name: str) -> bool:
    """Whether every rank should have the same value of that signal."""
    return name == GRAD_NORM or get_combine_rule(name) is CombineRule.SAME


def _differing_ranks(spread: Spread) -> Iterable[int]:
    if spread.mismatch is not None:
        return [rank for rank, _ in spread.mismatch.differing_ranks]
    return (spread.min_rank, spread.max_rank) if spread.min < spread.max else ()


def _single_signals(table: RankValues) -> tuple[dict[str, float], dict[str, Spread]]:
    """The same of the only rank, whose values need no combining."""
    ((rank, row),) = table.rows.items()
    values: dict[str, float] = {}
    spreads: dict[str, Spread] = {}
    for name, value in zip(table.names, unpack_row(row), strict=True):
        if not isfinite(value):
            values[name] = value
            spreads[name] = compute_spread((rank,), (value,))
            continue
        rule = get_combine_rule(name)
        # As a sum of one: -0.0 becomes 0.0.
        total = value + 0.0
        if rule is CombineRule.MEAN or rule is CombineRule.SUM:
            values[name] = total
        else:
            values[name] = abs(value) if rule is CombineRule.NORM else value
        spreads[name] = Spread(1, total, value, value, total, 0.0, rank, rank)
    return values, spreads


def _combine_signals(tables: Sequence[RankValues]) -> tuple[dict[str, float], dict[str, Spread]]:
    """Value and spread of each signal that any rank logged."""
    weights = {rank: table.weights for table in tables if table.weights for rank in table.rows}
    values: dict[str, float] = {}
    spreads: dict[str, Spread] = {}
    for name, ranks, column in _signal_columns(_column_blocks(tables)):
        rule = get_combine_rule(name)
        has_values = name in RANK_VALUE_SIGNALS and 1 < len(ranks) <= MAX_RANKS_WITH_VALUES
        spread = compute_spread(ranks, column, keep_values=has_values)
        if _must_match_across_ranks(name):
            spread = with_mismatch(spread, ranks, column)
        spreads[name] = spread
        if spread.bad_ranks:
            values[name] = sum_nonfinite(column)
        elif rule is not CombineRule.MEAN:
            values[name] = COMBINE_FUNCTIONS[rule](column)
        elif weights:
            column_weights = [
                weights[rank].get(name, 1.0) if rank in weights else 1.0 for rank in ranks
            ]
            values[name] = weighted_mean(column, column_weights)
        else:
            values[name] = spread.mean
    return values, spreads


Column = Sequence[float]


class ColumnBlock(NamedTuple):
    """Ranks in order that logged the same signals, and their values by signal."""

    ranks: Sequence[int]
    columns: Mapping[str, Column]


def _column_blocks(tables: Iterable[RankValues]) -> list[ColumnBlock]:
    """All values as columns, a block for each set of signals; the lowest rank's block first."""
    rows_by_names: dict[tuple[str, ...], dict[int, bytes]] = {}
    for table in tables:
        rows_by_names.setdefault(table.names, {}).update(table.rows)
    blocks = []
    for names, rows in rows_by_names.items():
        ranks = sorted(rows)
        values = unpack_matrix(b"".join(map(rows.__getitem__, ranks)))
        columns = {name: tuple(values[at :: len(names)]) for at, name in enumerate(names)}
        blocks.append(ColumnBlock(ranks, columns))
    return sorted(blocks, key=lambda block: block.ranks[0])


def _signal_columns(blocks: Sequence[ColumnBlock]) -> Iterator[tuple[str, Sequence[int], Column]]:
    """Each signal with the ranks that logged it, in order, and their values.

    Signals are in the order of the lowest rank that logged them.
    """
    orders_by_blocks: dict[tuple[int, ...], tuple[Sequence[int], Callable[[Column], Column]]] = {}
    for name in dict.fromkeys(chain.from_iterable(block.columns for block in blocks)):
        indices = tuple(at for at, block in enumerate(blocks) if name in block.columns)
        if len(indices) == 1:
            block = blocks[indices[0]]
            yield name, block.ranks, block.columns[name]
            continue
        if indices not in orders_by_blocks:
            ranks = [rank for at in indices for rank in blocks[at].ranks]
            order = sorted(range(len(ranks)), key=ranks.__getitem__)
            orders_by_blocks[indices] = [ranks[at] for at in order], itemgetter(*order)
        sorted_ranks, reorder = orders_by_blocks[indices]
        column = list(chain.from_iterable(blocks[at].columns[name] for at in indices))
        yield name, sorted_ranks, reorder(column)


def _combine_partial_norms(
    values: dict[str, float], spread: dict[str, Spread], tables: Iterable[RankValues]
) -> None:
    """Replace the norm of the parts by that of the gradient, if every rank logged its part."""
    complete = all(PARTIAL_GRAD_NORM in table.names for table in tables)
    if complete and GRAD_NORM not in values:
        values[GRAD_NORM] = values.pop(PARTIAL_GRAD_NORM)
        spread[GRAD_NORM] = spread.pop(PARTIAL_GRAD_NORM)


def compute_spread(
    ranks: Sequence[int], values: Sequence[float], *, keep_values: bool = False
) -> Spread:
    """The spread of the values of these ranks, which are in order."""
    bad: tuple[int, ...] = ()
    kept = (tuple(ranks), tuple(values)) if keep_values else ((), ())
    total = safe_sum(values)
    # The sum of finite values may overflow.
    if not isfinite(total) and not all(map(isfinite, values)):
        rows = list(zip(ranks, values, strict=True))
        bad = tuple(rank for rank, value in rows if not isfinite(value))
        ranks = [rank for rank, value in rows if isfinite(value)]
        values = [value for value in values if isfinite(value)]
        total = safe_sum(values)
    if not values:
        return Spread(0, nan, nan, nan, nan, nan, WHOLE_RUN, WHOLE_RUN, bad, None, *kept)
    count = len(values)
    mean = total / count
    # `dist` scales its terms; a sum of squares would overflow long before the values do.
    std = dist(values, (mean,) * count) / sqrt(count)
    # Of equal values the lowest rank is named, so that the result is stable.
    minimum, maximum = min(values), max(values)
    min_rank, max_rank = ranks[values.index(minimum)], ranks[values.index(maximum)]
    return Spread(count, mean, minimum, maximum, total, std, min_rank, max_rank, bad, None, *kept)


def with_mismatch(spread: Spread, ranks: Sequence[int], values: Sequence[float]) -> Spread:
    """The spread, with the ranks whose value differs from that of the majority, or of one half."""
    if spread.count < 3 or spread.min == spread.max:
        return spread
    rows = [row for row in zip(ranks, values, strict=True) if isfinite(row[1])]
    # If more than half of the values are equal, so is the median.
    majority = sorted([value for _, value in rows])[spread.count // 2]
    for tolerance in (0.0, NORM_RELATIVE_TOLERANCE * abs(majority)):
        differing = [(rank, value) for rank, value in rows if abs(value - majority) > tolerance]
        if differing and 2 * len(differing) < spread.count:
            listed = tuple(differing[:MAX_LISTED_DIFFERING_RANKS])
            return replace(spread, mismatch=RankMismatch(majority, len(differing), listed))
    return _with_other_half(spread, rows)


def _with_other_half(spread: Spread, rows: Sequence[tuple[int, float]]) -> Spread:
    """The spread, with the ranks that differ from the lowest if half of all have its value."""
    value = rows[0][1]
    differing = [row for row in rows if row[1] != value]
    if 2 * len(differing) != spread.count:
        return spread
    listed = tuple(differing[:MAX_LISTED_DIFFERING_RANKS])
    return replace(spread, mismatch=RankMismatch(value, len(differing), listed, has_majority=False))
