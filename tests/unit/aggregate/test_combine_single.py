"""The record of a run with one rank is what combining its values gives."""

from __future__ import annotations

from math import inf, isfinite, isnan, nan
from random import Random

import pytest

from sentinel.aggregate.combine import combine_ranks, compute_spread
from sentinel.aggregate.combine_rules import combine_values
from sentinel.aggregate.rank_values import merge_record
from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.model.record_batch import unpack_row
from sentinel.signals.catalogue import SIGNALS, get_combine_rule
from sentinel.signals.key_map import select_key_map

VALUES = (0.0, -0.0, 1.5, -2.0, 1e308, -5e-324, nan, inf, -inf, 1 / 3)


def exact(value):
    """As text, by which NaN equals itself and 0.0 is not -0.0."""
    return "nan" if isnan(value) else repr(value)


@pytest.mark.parametrize("seed", range(8))
def test_a_single_rank_gives_the_values_and_spreads_of_combining(seed):
    random = Random(seed)
    names = [*SIGNALS, "unknown"]
    values = {name: random.choice([*VALUES, random.gauss(0.0, 1.0)]) for name in names}
    record = Record("run", 3, 7, 9.0, values=values, step_index=7)
    table = merge_record(record, select_key_map({}))

    combined = combine_ranks(Event.STEP, [table], world_size=2)

    assert (combined.rank, [*combined.values]) == (WHOLE_RUN, [*table.names])
    for name, value in zip(table.names, unpack_row(table.rows[3]), strict=True):
        expected = combine_values(get_combine_rule(name), [value], [1.0])
        assert exact(combined.values[name]) == exact(expected)
        assert repr(combined.spread[name]) == repr(compute_spread([3], [value]))
        assert not combined.spread[name].ranks
        assert bool(combined.spread[name].bad_ranks) is not isfinite(value)
