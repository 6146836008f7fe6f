"""LAYERS records: of the run with given statistics, and of ranks with sums."""

from __future__ import annotations

import json

from sentinel.model.record import WHOLE_RUN, Event, Record
from sentinel.signals.layer_statistics import HISTOGRAM_KEY, sums_to_attributes


def layer_record(step, *, rank=WHOLE_RUN, time=None, attempt=0, histogram=None, **statistics):
    """A record with statistics: `layer_grad_norm={"layer": 0.5, ...}` and others."""
    return Record(
        "run",
        rank,
        step,
        1_700_000_000.0 + step if time is None else time,
        Event.LAYERS,
        values={
            f"{statistic}/{layer}": value
            for statistic, by_layer in statistics.items()
            for layer, value in by_layer.items()
        },
        attributes={HISTOGRAM_KEY: json.dumps(histogram or {})},
        attempt=attempt,
        step_index=step,
    )


def rank_sums(step, rank, sums, *, ranks=1, attempt=0, histogram=None):
    """The record of one rank; `sums` has a `LayerSum` for each layer."""
    attributes = sums_to_attributes(
        [*sums], sums.values(), histogram or {}, ranks, is_lowest_rank=rank == 0
    )
    return Record(
        "run",
        rank,
        step,
        1_700_000_000.0 + step,
        Event.LAYERS,
        attributes=attributes,
        attempt=attempt,
        step_index=step,
    )
