"""The usual level of each layer, and how far each has moved from it beside the others."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field


@dataclass(slots=True)
class LayerLevels:
    """The mean of the values of each layer so far, of which the last `window` count most.

    `changes` are defined from `min_values` on. Layers that are no longer measured are dropped when
    there are more than `max_layers`.

    >>> levels = LayerLevels(min_values=2)
    >>> for value in (1.0, 3.0):
    ...     levels.add({"a": value})
    >>> levels.changes({"a": 5.0, "b": 1.0})
    {'a': 3.0}
    """

    min_values: int = 8
    window: int = 64
    max_layers: int = 128
    means: dict[str, float] = field(default_factory=dict)
    counts: dict[str, int] = field(default_factory=dict)

    def add(self, values: Mapping[str, float]) -> None:
        """Add the values of a measurement, by layer."""
        for layer, value in values.items():
            count = self.counts[layer] = min(self.counts.get(layer, 0) + 1, self.window)
            mean = self.means.get(layer, value)
            self.means[layer] = mean + (value - mean) / count
        if len(self.means) > self.max_layers:
            self.means = {layer: x for layer, x in self.means.items() if layer in values}
            self.counts = {layer: self.counts[layer] for layer in self.means}

    def changes(self, values: Mapping[str, float]) -> dict[str, float]:
        """Each value minus its usual level, where that is known."""
        return {
            layer: value - self.means[layer]
            for layer, value in values.items()
            if self.counts.get(layer, 0) >= self.min_values
        }
