"""Exploding layer gradient: that of a layer grows far above its level and dominates all others.

Formula
    change   = ln(norm) of a layer minus its mean so far, which excludes what is high
    risen    = change exceeds the lower quartile of the changes of all layers by ln `ratio`, and the
               norm is 10 times the highest usual norm of any layer, moved by that quartile
    by depth = among at least 4 layers of one kind, whose names differ in numbers only, ln(norm)
               falls with the position in the model (correlation at most -0.8), and that of the
               layer exceeds the lowest by ln `depth_ratio` and is not below a tenth of the highest
               norm of any layer
    Finding  = in each of the last 3 measurements, the layer has risen; or in each of the last
               `in_a_row`, it is high by depth

Units
    `ratio`, `depth_ratio`: plain factors. `in_a_row`: measurements. The norm is that before
    clipping; where it is measured after it, all layers are clipped alike, and the quartile is.

Source
    Pascanu et al. 2013 (arXiv:1211.5063) on exploding gradients; Poole et al. 2016
    (arXiv:1606.05340) on initial weights whose gradient grows from layer to layer. A gradient that
    rises in all layers at once belongs to the detector `grad_explosion`. A fresh adapter or head
    begins with a small gradient that grows, but not beyond all others.

Defaults
    On 152 healthy trainings of 19 kinds (zero init, whose inner layers begin without a gradient,
    loss spikes, clipping) and 18 of TRL there is no finding. Twenty layers of tanh with initial
    weights 6 times too large are found in 8 of 8 trainings after 8 measurements, and a gradient
    that a mistake multiplies by 1000 in one block in 8 of 8 after 3. `ratio` 100: in healthy
    trainings of TRL no layer rises above 5 times its level.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, log
from typing import ClassVar

from sentinel.detectors._layers import (
    COUNT,
    extended_streaks,
    high_by_depth,
    measured,
    same_holds_for,
)
from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding
from sentinel.model.record import Event, Record
from sentinel.stats.layer_levels import LayerLevels

MIN_LAYERS = 3
"""Layers beside which one can have risen."""

RISEN_IN_A_ROW = 3
"""Measurements in which a layer has risen that are no single batch."""

DOMINANCE = 10.0
"""Factor on the highest norm of any layer: its usual one, above which a layer has risen, or the
present one, which those that are high by depth are near. In a healthy transformer the queries and
keys differ by 1000 from block to block, far below all other layers."""


@dataclass
class LayerGradientExploding(DetectorDefaults):
    """Evaluates `layer_grad_norm` of each layer beside its past and the other layers."""

    ratio: float = 100.0
    depth_ratio: float = 1e3
    in_a_row: int = 8

    events: ClassVar[frozenset[Event]] = frozenset({Event.START, Event.LAYERS})
    signal: ClassVar[str] = "layer_grad_norm"
    remedy: ClassVar[str] = (
        "If it grows with depth from the start, use smaller initial weights, normalisation or "
        "residual connections. If it has risen in the course of the run, inspect the batch of the "
        "onset and what the named layer computes: a division, a logarithm, a softmax. Lower "
        "{learning rate} or {gradient clipping}, and resume from the last checkpoint before the "
        "onset."
    )

    def __post_init__(self) -> None:
        self._levels = LayerLevels()
        self._high: dict[str, list[int]] = {}

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one measurement."""
        if record.event is Event.START:
            self.__post_init__()
        norms = measured(record, "layer_grad_norm")
        logs = {layer: log(norm) for layer, norm in norms.items() if norm > 0.0}
        if len(logs) < MIN_LAYERS:
            return None
        least = max(logs.values()) - log(DOMINANCE)
        risen, deep = self._risen_layers(logs), high_by_depth(logs, log(self.depth_ratio), least)
        high = [layer for layer in logs if layer in risen or layer in deep]
        self._high = extended_streaks(self._high, high, record.step)
        self._levels.add({layer: x for layer, x in logs.items() if layer not in self._high})
        exploded = [
            layer
            for layer in high
            if self._high[layer][COUNT] >= (RISEN_IN_A_ROW if layer in risen else self.in_a_row)
        ]
        if not exploded:
            return None if high else CLEAR
        # A gradient explodes where it passes first: at the layer that is nearest to the output.
        first = next((layer for layer in reversed(exploded) if layer in risen), "")
        if first:
            reason = f"it was {exp(risen[first]):.3g} before"
            return self._finding(first, exploded, norms, reason)
        highest = max(exploded, key=lambda layer: logs[layer])
        reason = f"that of `{deep[highest]}`, behind it, is {norms[deep[highest]]:.3g}"
        return self._finding(highest, exploded, norms, reason)

    def _risen_layers(self, logs: dict[str, float]) -> dict[str, float]:
        """The usual ln(norm) of each layer that has risen beside the others and above them."""
        changes = self._levels.changes(logs)
        if len(changes) < MIN_LAYERS:
            return {}
        lower, means = sorted(changes.values())[len(changes) // 4], self._levels.means
        bound = max(means.values()) + log(DOMINANCE) + lower
        return {
            layer: means[layer]
            for layer, change in changes.items()
            if change >= lower + log(self.ratio) and logs[layer] >= bound
        }

    def _finding(
        self, named: str, exploded: list[str], norms: dict[str, float], reason: str
    ) -> Finding:
        count, onset = self._high[named]
        others = [layer for layer in exploded if layer != named]
        return Finding(
            summary=f"The gradient norm of layer `{named}` is {norms[named]:.3g}, high for "
            f"{count} measurements; {reason}.{same_holds_for(others)}",
            evidence={
                "exploded_layers": float(len(exploded)),
                "measured_layers": float(len(norms)),
                "layer": named,
                "layer_gradient_norm": norms[named],
                "lowest_layer_gradient_norm": min(norms.values()),
            },
            onset_step=onset,
        )
