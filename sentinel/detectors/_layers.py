"""Layers of a measurement, as detectors of layers compare and name them.

Layers of one kind are those whose names differ in numbers only, as `layers.0.mlp` and
`layers.7.mlp`: they do the same at another depth, or are experts of one mixture.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from math import inf, isnan, sqrt
from typing import Any

from sentinel.model.record import LAYERS, Record
from sentinel.signals.layer_statistics import by_layer

MAX_NAMED_LAYERS = 3
"""Layers that are named in a text."""

MIN_LAYERS_OF_KIND = 4
"""Layers of one kind whose depth can show a trend."""

MIN_CORRELATION = 0.8
"""Correlation of ln(norm) with the position in the model, without its sign, that is a trend."""

COUNT, ONSET = range(2)
"""A streak of a layer: measurements in a row, and the step of the first."""

_NUMBER = re.compile(r"\d+")


def measured(record: Record, statistic: str) -> dict[str, float]:
    """The finite values of that statistic by layer, in the order of the model.

    A layer without a gradient has none. Empty for a record that measures no layers.
    """
    if record.event is not LAYERS:
        return {}
    values = by_layer(record.values, statistic)
    return {layer: value for layer, value in values.items() if -inf < value < inf}


def without_gradient(record: Record) -> set[str]:
    """Layers that are trained, but have no gradient: every statistic of them is NaN.

    Those that are frozen on purpose require no gradient and are not in the record.
    """
    shares = by_layer(record.values, "layer_grad_zero_share")
    norms = by_layer(record.values, "layer_grad_norm") if record.event is LAYERS else {}
    # A gradient of NaN still has a share of zeros.
    return {layer for layer, norm in norms.items() if isnan(norm) and isnan(shares.get(layer, 0.0))}


def kind_of(layer: str) -> str:
    """The name without its numbers.

    >>> kind_of("model.layers.12.mlp.up_proj")
    'model.layers.*.mlp.up_proj'
    """
    return _NUMBER.sub("*", layer)


def by_kind(layers: Iterable[str]) -> dict[str, list[str]]:
    """The layers of each kind, in the order of the model."""
    kinds: dict[str, list[str]] = {}
    for layer in layers:
        kinds.setdefault(kind_of(layer), []).append(layer)
    return kinds


def are_part_of_kind(affected: Iterable[str], others: Iterable[str]) -> bool:
    """Whether some layers of a kind are affected, and others of it are not.

    A single head that no loss of this run uses is of no kind.
    """
    kinds = {kind_of(layer) for layer in others}
    return any(kind_of(layer) in kinds for layer in affected)


def has_whole_block(affected: Iterable[str], others: Iterable[str]) -> bool:
    """Whether all layers of one block, of several, are affected, and blocks of its kind are not.

    >>> has_whole_block(["h.2.norm", "h.2.mlp"], ["h.1.norm", "h.1.mlp"])
    True
    >>> has_whole_block(["h.1.norm", "h.2.norm"], ["h.1.mlp", "h.2.mlp"])
    False
    """
    blocks = Counter(layer.rpartition(".")[0] for layer in affected)
    intact = {layer.rpartition(".")[0] for layer in others}
    kinds = {kind_of(block) for block in intact}
    return any(
        count > 1 and block and block not in intact and kind_of(block) in kinds
        for block, count in blocks.items()
    )


def names(layers: Sequence[str]) -> str:
    """The first layers of a list in words.

    >>> names(["a", "b", "c", "d"])
    '`a`, `b`, `c` and 1 more'
    """
    shown = ", ".join(f"`{layer}`" for layer in layers[:MAX_NAMED_LAYERS])
    more = len(layers) - MAX_NAMED_LAYERS
    return f"{shown} and {more} more" if more > 0 else shown


def same_holds_for(others: Sequence[str]) -> str:
    """A sentence that names the other layers of a finding, after a space; empty without any."""
    return f" The same holds for {names(others)}." if others else ""


def extended_streaks(
    streaks: Mapping[str, list[int]], layers: Iterable[str], step: int
) -> dict[str, list[int]]:
    """The streaks of these layers with one more measurement; those of all others end.

    >>> extended_streaks({"a": [3, 10], "b": [1, 12]}, ["a", "c"], 14)
    {'a': [4, 10], 'c': [1, 14]}
    """
    before = [(layer, streaks.get(layer, [0, step])) for layer in layers]
    return {layer: [streak[COUNT] + 1, streak[ONSET]] for layer, streak in before}


def drop_absent(states: dict[str, Any], present: Mapping[str, float], most: int) -> None:
    """Remove the states of layers that are no longer measured if there are more than `most`."""
    if len(states) > most:
        for layer in [each for each in states if each not in present]:
            del states[layer]


def depth_correlation(values: Sequence[float]) -> float:
    """Pearson's correlation of values with their position; 0 if all are equal.

    >>> depth_correlation([3.0, 2.0, 1.0])
    -1.0
    """
    count = len(values)
    middle, mean = (count - 1) / 2.0, sum(values) / count
    products = sum((at - middle) * (value - mean) for at, value in enumerate(values))
    squares = sum((value - mean) ** 2 for value in values)
    positions = count * (count * count - 1) / 12.0
    return products / sqrt(squares * positions) if squares > 0.0 else 0.0


def high_by_depth(logs: Mapping[str, float], margin: float, least: float = -inf) -> dict[str, str]:
    """Layers that are high by depth, each with the lowest of its kind.

    In their kind the values fall with depth, by `margin` or more from the highest to the lowest.
    High are those `margin` above the lowest, and not below `least`.
    """
    high: dict[str, str] = {}
    for layers in by_kind(logs).values():
        values = [logs[layer] for layer in layers]
        lowest = min(values)
        is_wide = len(values) >= MIN_LAYERS_OF_KIND and max(values) >= lowest + margin
        if is_wide and depth_correlation(values) <= -MIN_CORRELATION:
            end = layers[values.index(lowest)]
            bound = max(lowest + margin, least)
            high |= {layer: end for layer in layers if logs[layer] >= bound}
    return high
