"""Measurements of layers with given values, and healthy ones at random."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from math import exp
from random import Random

from sentinel.model.record import WHOLE_RUN, Event, Record

LAYERS = tuple(f"layers.{number}.{part}" for number in range(6) for part in ("attention", "mlp"))


def measurement(step: int, statistic: str, values: Mapping[str, float]) -> Record:
    """A LAYERS record with one statistic."""
    named = {f"{statistic}/{layer}": value for layer, value in values.items()}
    return Record("run", WHOLE_RUN, step, float(step), Event.LAYERS, named)


def healthy_norms(count: int, seed: int = 0) -> Iterator[dict[str, float]]:
    """Healthy gradient norms of `LAYERS`: of different size, falling together, with noise."""
    random = Random(seed)
    sizes = {layer: exp(random.uniform(-4.0, 2.0)) for layer in LAYERS}
    for at in range(count):
        common = exp(random.gauss(0.0, 0.7)) * (1.0 + at / 5) ** -0.5
        # A spike in all layers.
        common *= 30.0 if random.random() < 0.02 else 1.0
        yield {layer: common * size * exp(random.gauss(0.0, 0.5)) for layer, size in sizes.items()}
