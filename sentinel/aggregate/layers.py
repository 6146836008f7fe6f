"""Combines the ranks' sums over layers into one LAYERS record of the run.

Replicas have the same gradient, so one rank reports it; of a sharded gradient each rank reports the
sums over its part. The record of the run follows once all parts of a step have arrived. Statistics
of a step of which a part is missing would be of another vector: such a step is left out.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field, replace
from itertools import starmap
from operator import add

from sentinel.model.counters import Counters
from sentinel.model.record import LAYERS, WHOLE_RUN, Record
from sentinel.signals.layer_statistics import (
    HISTOGRAM_KEY,
    NAMES_CRC_KEY,
    RANKS_KEY,
    LayerSum,
    LayerSumsError,
    layer_values,
    layers_from_attributes,
    sums_from_attributes,
)

MAX_OPEN_STEPS = 8
"""Steps that wait for ranks; beyond it the oldest is left out."""


@dataclass(slots=True)
class StepLayers:
    """The sums of the layers at one step so far, over the ranks in `ranks`."""

    names_crc: str
    sums: list[LayerSum]
    ranks: set[int] = field(default_factory=set)
    layers: list[str] = field(default_factory=list)
    histogram: str = "{}"
    time: float = 0.0


@dataclass
class LayerAggregator:
    """Passes every record on; yields the statistics of a step's layers once they are complete."""

    counters: Counters = field(default_factory=Counters)
    steps: dict[tuple[int, int], StepLayers] = field(default_factory=dict)
    """By attempt and step index, in the order of their first record."""

    def process(self, record: Record) -> Iterable[Record]:
        """The record, then what it completes."""
        if record.rank == WHOLE_RUN or record.event is not LAYERS:
            return (record,)
        return self._process(record)

    def _process(self, record: Record) -> Iterator[Record]:
        yield record
        if record.values:
            # Statistics already, as of a source that has the whole gradient.
            yield replace(record, rank=WHOLE_RUN)
            return
        try:
            combined = self._add(record)
        except LayerSumsError:
            self.counters.add("sentinel_dropped_records_total", "processing_failed")
        else:
            if combined is not None:
                yield combined

    def _add(self, record: Record) -> Record | None:
        """Add the sums of one rank; the record of the run if they are the last ones.

        Raises LayerSumsError if they are damaged, or of other layers than those of other ranks.
        """
        sums, crc = sums_from_attributes(record.attributes), record.attributes.get(NAMES_CRC_KEY)
        key = record.attempt, record.step_index
        step = self.steps.get(key)
        if step is None:
            step = self.steps[key] = StepLayers(crc or "", [LayerSum()] * len(sums))
            self._drop_old(record.attempt)
        if crc != step.names_crc or len(sums) != len(step.sums):
            raise LayerSumsError("ranks report different layers")
        if record.rank in step.ranks:
            return None
        step.ranks.add(record.rank)
        step.sums = [*starmap(add, zip(step.sums, sums, strict=True))]
        step.time = max(step.time, record.time)
        layers = layers_from_attributes(record.attributes)
        if layers:
            step.layers, step.histogram = layers, record.attributes.get(HISTOGRAM_KEY, "{}")
        if len(step.ranks) < _rank_count(record):
            return None
        del self.steps[key]
        if len(step.layers) != len(step.sums):
            raise LayerSumsError("no rank reports the names of the layers")
        return replace(
            record,
            rank=WHOLE_RUN,
            time=step.time,
            values=layer_values(step.layers, step.sums),
            attributes={HISTOGRAM_KEY: step.histogram},
        )

    def _drop_old(self, attempt: int) -> None:
        for key in [key for key in self.steps if key[0] < attempt]:
            del self.steps[key]
        while len(self.steps) > MAX_OPEN_STEPS:
            del self.steps[next(iter(self.steps))]


def _rank_count(record: Record) -> int:
    """The number of ranks whose sums make up the whole. Raises LayerSumsError."""
    try:
        return int(record.attributes[RANKS_KEY])
    except (KeyError, ValueError) as error:
        raise LayerSumsError("the number of ranks is missing") from error
