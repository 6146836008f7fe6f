"""Statistics of the gradient of each layer of a model, and the sums over ranks behind them.

A measurement covers every layer. Each rank reports sums over the part of the gradient that it
holds; those of all ranks are combined before anything is divided, so that the result is that of the
whole gradient. NaN is a statistic that is undefined at this step: of a layer without a gradient, of
weights that are zero or nearly so, or of too few measurements. The norm of a gradient that is not
finite is infinite.
"""

from __future__ import annotations

import json
from array import array
from base64 import b64decode, b64encode
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import hypot, inf, isnan, nan, sqrt
from operator import attrgetter
from sys import byteorder
from zlib import crc32

LAYER_STATISTICS: dict[str, str] = {
    "layer_grad_norm": "L2 norm of the gradient of a layer, before clipping, after unscaling",
    "layer_grad_zero_share": "share of the elements of a layer's gradient that are zero",
    "layer_update_ratio": "norm of a step's update of a layer, divided by that of its weights",
    "layer_grad_cosine": "cosine of a layer's gradient to that of the step before",
    "layer_noise_scale": "gradient noise scale of a layer, in batches (McCandlish et al. 2018)",
}
"""What each statistic is. A value of a LAYERS record is named `<statistic>/<layer>`."""

MAX_LAYERS = 128
"""Layers of one measurement; the parameters of larger models are grouped more coarsely."""

HISTOGRAM_KEY = "histogram"
"""Attribute of a LAYERS record: JSON of `{layer: [first exponent, count, count, ...]}`.

Count i is of sampled elements g with 2**(first+i) <= |g| < 2**(first+i+1); zero is in none.
"""
LAYERS_KEY, SUMS_KEY, NAMES_CRC_KEY, RANKS_KEY = "layers", "sums", "layers_crc", "ranks"
"""Attributes of the LAYERS record of one rank: names (of the lowest rank only), sums, checksum of
the names, and the number of ranks whose sums make up the whole gradient."""

SMALL_WEIGHT, MAX_RATIO_OF_SMALL_WEIGHTS = 5e-3, 0.2
"""Root mean square of the weights of a layer that may begin at 0, as those of an adapter, and the
ratio of an update to them from which on it is undefined. Usual initial weights are 0.02 or more;
from 0, the first five updates of a usual size are larger fractions, and harmless."""

LayerValues = dict[str, float]

_NUMBER = "f"


class LayerSumsError(ValueError):
    """Sums that cannot be decoded or combined."""


@dataclass(frozen=True, slots=True)
class LayerSum:
    """What one rank adds up for a layer; norms are L2 norms, which combine by their squares.

    `sample_norm`, `last_norm` and `dot` are of sampled elements of the gradient, at this step and
    the step before; `update_norm` and `weight_norm` of sampled weights. `mean_square` and
    `mean_dot` are averages over measurements of the product of a gradient with itself and with the
    one before; NaN until there are enough.
    """

    grad_norm: float = 0.0
    zeros: float = 0.0
    elements: float = 0.0
    update_norm: float = 0.0
    weight_norm: float = 0.0
    sample_norm: float = 0.0
    last_norm: float = 0.0
    dot: float = 0.0
    mean_square: float = 0.0
    mean_dot: float = 0.0

    def __add__(self, other: LayerSum) -> LayerSum:
        """The sum over the parts that both cover."""
        return LayerSum(
            hypot(self.grad_norm, other.grad_norm),
            self.zeros + other.zeros,
            self.elements + other.elements,
            hypot(self.update_norm, other.update_norm),
            hypot(self.weight_norm, other.weight_norm),
            hypot(self.sample_norm, other.sample_norm),
            hypot(self.last_norm, other.last_norm),
            self.dot + other.dot,
            self.mean_square + other.mean_square,
            self.mean_dot + other.mean_dot,
        )

    def statistics(self) -> tuple[float, ...]:
        """The values of `LAYER_STATISTICS`, in their order."""
        if not self.elements > 0.0:
            return (nan,) * len(LAYER_STATISTICS)
        norms = self.sample_norm * self.last_norm
        cosine = self.dot / norms if 0.0 < norms < inf else nan
        noise = (self.mean_square - self.mean_dot) / self.mean_dot if self.mean_dot > 0.0 else nan
        return (
            inf if isnan(self.grad_norm) else self.grad_norm,
            self.zeros / self.elements,
            self._update_ratio(),
            nan if isnan(cosine) else max(-1.0, min(1.0, cosine)),
            nan if isnan(noise) else max(0.0, noise),
        )

    def _update_ratio(self) -> float:
        """Update by weights; NaN for weights that are 0, or begin there and are not far from it."""
        if not self.weight_norm > 0.0:
            return nan
        ratio = self.update_norm / self.weight_norm
        is_small = self.weight_norm < SMALL_WEIGHT * sqrt(self.elements)
        return nan if is_small and ratio > MAX_RATIO_OF_SMALL_WEIGHTS else ratio


_FIELDS = tuple(each.name for each in fields(LayerSum))
_numbers = attrgetter(*_FIELDS)


def layer_values(layers: Iterable[str], sums: Iterable[LayerSum]) -> LayerValues:
    """The values of a LAYERS record: one for each statistic and layer, by `<statistic>/<layer>`."""
    rows = [(layer, each.statistics()) for layer, each in zip(layers, sums, strict=True)]
    return {
        f"{statistic}/{layer}": row[at]
        for at, statistic in enumerate(LAYER_STATISTICS)
        for layer, row in rows
    }


def by_layer(values: Mapping[str, float], statistic: str) -> LayerValues:
    """The values of one statistic by layer, in the order of the model.

    >>> by_layer({"layer_grad_norm/a.b": 0.5, "layer_grad_cosine/a.b": 1.0}, "layer_grad_norm")
    {'a.b': 0.5}
    """
    prefix = f"{statistic}/"
    return {
        name.removeprefix(prefix): value
        for name, value in values.items()
        if name.startswith(prefix)
    }


def sums_to_attributes(
    layers: Sequence[str],
    sums: Iterable[LayerSum],
    histogram: Mapping[str, Sequence[int]],
    ranks: int,
    *,
    is_lowest_rank: bool,
) -> dict[str, str]:
    """The attributes of the LAYERS record of one rank: about 20 KiB, 7 KiB of a higher rank."""
    numbers = array(_NUMBER, [_float32(number) for each in sums for number in _numbers(each)])
    if byteorder == "big":
        numbers.byteswap()
    names = json.dumps(list(layers), separators=(",", ":"))
    attributes = {
        SUMS_KEY: b64encode(numbers.tobytes()).decode(),
        NAMES_CRC_KEY: str(crc32(names.encode())),
        RANKS_KEY: str(ranks),
    }
    if is_lowest_rank:
        attributes[LAYERS_KEY] = names
        attributes[HISTOGRAM_KEY] = json.dumps(histogram, separators=(",", ":"))
    return attributes


def sums_from_attributes(attributes: Mapping[str, str]) -> list[LayerSum]:
    """The sums of a rank, by layer. Raises LayerSumsError."""
    numbers = array(_NUMBER)
    try:
        numbers.frombytes(b64decode(attributes[SUMS_KEY], validate=True))
    except (KeyError, ValueError) as error:
        raise LayerSumsError("the sums of the layers cannot be decoded") from error
    if byteorder == "big":
        numbers.byteswap()
    width = len(_FIELDS)
    if not numbers or len(numbers) % width or len(numbers) > width * MAX_LAYERS:
        raise LayerSumsError(f"{len(numbers)} numbers are not {width} for each layer")
    return [LayerSum(*numbers[at : at + width]) for at in range(0, len(numbers), width)]


def layers_from_attributes(attributes: Mapping[str, str]) -> list[str]:
    """The names of the layers, if the rank reported them; else empty. Raises LayerSumsError."""
    try:
        names = json.loads(attributes.get(LAYERS_KEY, "[]"))
    except ValueError as error:
        raise LayerSumsError("the names of the layers cannot be decoded") from error
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        raise LayerSumsError("the names of the layers are not a list of texts")
    return names


def _float32(number: float) -> float:
    """The number, infinite if it is beyond the range of float32."""
    return number if -3.4e38 < number < 3.4e38 else number * inf
