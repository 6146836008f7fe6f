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

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

from sentinel.detectors._uneven_gradients import UnevenGradients


@dataclass
class LayerGradientVanishing(UnevenGradients):
    """Evaluates `layer_grad_norm` of each layer beside its past and the other layers."""

    share: float = 1e-4
    in_a_row: int = 8

    sign = -1
    participle = "vanished"
    remedy = (
        "If it vanishes with depth, use residual connections, normalisation, ReLU or GELU in "
        "place of sigmoid and tanh, and initial weights that suit them. If it has fallen in the "
        "course of the run, a layer saturates: lower {learning rate}, and start again from before "
        "the onset."
    )

    def _moved_layers(self, changes: Mapping[str, float]) -> set[str]:
        bound = sorted(changes.values())[(3 * len(changes)) // 4] + log(self.share)
        return {layer for layer, change in changes.items() if change <= bound}

    def _deep_layers(self, logs: Mapping[str, float]) -> dict[str, str]:
        return self._by_depth(logs, -log(self.share))
