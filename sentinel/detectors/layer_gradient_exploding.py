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

from collections.abc import Mapping
from dataclasses import dataclass
from math import log

from sentinel.detectors._uneven_gradients import UnevenGradients

DOMINANCE = 10.0
"""Factor on the highest norm of any layer: its usual one, above which a layer has risen, or the
present one, which those that are high by depth are near. In a healthy transformer the queries and
keys differ by 1000 from block to block, far below all other layers."""


@dataclass
class LayerGradientExploding(UnevenGradients):
    """Evaluates `layer_grad_norm` of each layer beside its past and the other layers."""

    ratio: float = 100.0
    depth_ratio: float = 1e3
    in_a_row: int = 8

    sign = 1
    participle = "exploded"
    moved_in_a_row = 3
    remedy = (
        "If it grows with depth from the start, use smaller initial weights, normalisation or "
        "residual connections. If it has risen in the course of the run, inspect the batch of the "
        "onset and what the named layer computes: a division, a logarithm, a softmax. Lower "
        "{learning rate} or {gradient clipping}, and resume from the last checkpoint before the "
        "onset."
    )

    def _moved_layers(self, changes: Mapping[str, float]) -> set[str]:
        lower, means = sorted(changes.values())[len(changes) // 4], self._levels.means
        bound, least = max(means.values()) + log(DOMINANCE) + lower, lower + log(self.ratio)
        return {each for each, x in changes.items() if x >= least and means[each] + x >= bound}

    def _deep_layers(self, logs: Mapping[str, float]) -> dict[str, str]:
        least = max(logs.values()) - log(DOMINANCE)
        return self._by_depth(logs, log(self.depth_ratio), least)
