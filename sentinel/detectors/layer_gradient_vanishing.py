"""Vanishing layer gradient: that of a layer has become negligible beside the other layers'.

Formula
    change   = ln(norm) of a layer minus its mean so far, which excludes what is low
    fallen   = change is below the upper quartile of the changes of all layers by ln `share` or more
    by depth = among at least 4 layers of one kind, whose names differ in numbers only, ln(norm)
               rises with the position in the model (correlation at least 0.8), and that of the
               layer is below the highest by ln `share` or more
    Finding  = in each of the last `in_a_row` measurements, the layer has fallen, or is low by depth

Units
    `share`: fraction of the gradient norm of other layers. `in_a_row`: measurements. A norm of
    exactly 0 belongs to the detector `layer_gradient_dead`.

Source
    Hochreiter 1991 and Bengio et al. 1994 on gradients that vanish with depth; Glorot and Bengio
    2010 on sigmoids and initial weights. A layer that saturates passes hardly any gradient on.
    Quartile and kind: when all layers shrink together, as on memorised data or at the end of
    training, no layer is the reason, and a head differs from a norm at any depth.

Defaults
    On 152 healthy trainings of 19 kinds (layer scale of 1e-6, memorised data, loss spikes) and 18
    of TRL there is no finding. Ten layers of sigmoids are found in 16 of 16 trainings after 8
    measurements: the first layer has 1e-8 of the gradient of the last. `share` 1e-4: in healthy
    trainings of TRL no layer falls below 0.02 of its level.
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
"""Layers beside which one can have fallen."""


@dataclass
class LayerGradientVanishing(DetectorDefaults):
    """Evaluates `layer_grad_norm` of each layer beside its past and the other layers."""

    share: float = 1e-4
    in_a_row: int = 8

    events: ClassVar[frozenset[Event]] = frozenset({Event.START, Event.LAYERS})
    signal: ClassVar[str] = "layer_grad_norm"
    remedy: ClassVar[str] = (
        "If it vanishes with depth, use residual connections, normalisation, ReLU or GELU in "
        "place of sigmoid and tanh, and initial weights that suit them. If it has fallen in the "
        "course of the run, a layer saturates: lower {learning rate}, and start again from before "
        "the onset."
    )

    def __post_init__(self) -> None:
        self._levels = LayerLevels()
        self._low: dict[str, list[int]] = {}

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one measurement."""
        if record.event is Event.START:
            self.__post_init__()
        norms = measured(record, "layer_grad_norm")
        logs = {layer: log(norm) for layer, norm in norms.items() if norm > 0.0}
        if len(logs) < MIN_LAYERS:
            return None
        fallen = self._fallen_layers(logs)
        deep = high_by_depth({layer: -x for layer, x in logs.items()}, -log(self.share))
        low = [layer for layer in logs if layer in fallen or layer in deep]
        self._low = extended_streaks(self._low, low, record.step)
        self._levels.add({layer: x for layer, x in logs.items() if layer not in self._low})
        vanished = [layer for layer in low if self._low[layer][COUNT] >= self.in_a_row]
        if not vanished:
            return None if low else CLEAR
        # A gradient vanishes where it passes first: at the layer that is nearest to the output.
        first = next((layer for layer in reversed(vanished) if layer in fallen), "")
        if first:
            before = exp(fallen[first])
            reason = f"it was {before:.3g} before, and other layers have kept theirs"
            return self._finding(first, vanished, norms, reason, before)
        lowest = min(vanished, key=lambda layer: logs[layer])
        reason = f"that of `{deep[lowest]}`, behind it, is {norms[deep[lowest]]:.3g}"
        return self._finding(lowest, vanished, norms, reason, 0.0)

    def _fallen_layers(self, logs: dict[str, float]) -> dict[str, float]:
        """The usual ln(norm) of each layer that has fallen beside the others."""
        changes = self._levels.changes(logs)
        if len(changes) < MIN_LAYERS:
            return {}
        bound = sorted(changes.values())[(3 * len(changes)) // 4] + log(self.share)
        return {layer: self._levels.means[layer] for layer, x in changes.items() if x <= bound}

    def _finding(
        self, named: str, vanished: list[str], norms: dict[str, float], reason: str, before: float
    ) -> Finding:
        count, onset = self._low[named]
        others = [layer for layer in vanished if layer != named]
        return Finding(
            summary=f"The gradient norm of layer `{named}` is {norms[named]:.3g}, low for "
            f"{count} measurements; {reason}.{same_holds_for(others)}",
            evidence={
                "vanished_layers": float(len(vanished)),
                "measured_layers": float(len(norms)),
                "layer": named,
                "layer_gradient_norm": norms[named],
                "layer_gradient_norm_before": before,
            },
            onset_step=onset,
        )
