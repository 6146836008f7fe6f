"""Layers whose gradient norm leaves its level, or the trend of the depth, on one side."""

from __future__ import annotations

from collections.abc import Mapping
from math import exp, inf, log
from typing import ClassVar

from sentinel.detectors._layers import (
    COUNT,
    extended_streaks,
    high_by_depth,
    measured,
    same_holds_for,
)
from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding
from sentinel.model.record import LAYERS, START, Record
from sentinel.stats.layer_levels import LayerLevels

MIN_LAYERS = 3
"""Layers beside which one can have moved."""


class UnevenGradients(DetectorDefaults):
    """Evaluates `layer_grad_norm` of each layer beside its past and the other layers.

    `sign` is 1 for norms that are too high and -1 for those that are too low, `participle` is what
    became of such layers. They last for `in_a_row` measurements, or those that have moved for
    `moved_in_a_row`, if it is set.
    """

    events = frozenset({START, LAYERS})
    signal = "layer_grad_norm"
    sign: ClassVar[int]
    participle: ClassVar[str]
    moved_in_a_row: ClassVar[int | None] = None
    in_a_row: int

    def __post_init__(self) -> None:
        self._levels = LayerLevels()
        self._streaks: dict[str, list[int]] = {}

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one measurement."""
        if record.event is START:
            self.__post_init__()
        norms = measured(record, "layer_grad_norm")
        logs = {layer: log(norm) for layer, norm in norms.items() if norm > 0.0}
        if len(logs) < MIN_LAYERS:
            return None
        changes = self._levels.changes(logs)
        moved = self._moved_layers(changes) if len(changes) >= MIN_LAYERS else set()
        deep = self._deep_layers(logs)
        uneven = [layer for layer in logs if layer in moved or layer in deep]
        usual = {layer: self._levels.means[layer] for layer in moved}
        self._streaks = extended_streaks(self._streaks, uneven, record.step)
        self._levels.add({layer: x for layer, x in logs.items() if layer not in self._streaks})
        lasting = [
            layer
            for layer in uneven
            if self._streaks[layer][COUNT]
            >= (self.moved_in_a_row if layer in moved and self.moved_in_a_row else self.in_a_row)
        ]
        if not lasting:
            return None if uneven else CLEAR
        # A gradient changes where it passes first: at the layer that is nearest to the output.
        named = next((layer for layer in reversed(lasting) if layer in moved), "")
        if named:
            before = exp(usual[named])
            reason = f"it was {before:.3g} before, and other layers have kept theirs"
            return self._finding(named, lasting, norms, reason, before)
        named = max(lasting, key=lambda layer: self.sign * logs[layer])
        reason = f"that of `{deep[named]}`, behind it, is {norms[deep[named]]:.3g}"
        return self._finding(named, lasting, norms, reason, 0.0)

    def _moved_layers(self, changes: Mapping[str, float]) -> set[str]:
        """The layers that have left their level beside the others, by the changes of ln(norm)."""
        raise NotImplementedError

    def _deep_layers(self, logs: Mapping[str, float]) -> dict[str, str]:
        """Layers that are off by depth, each with the one at the other end of its kind."""
        raise NotImplementedError

    def _by_depth(
        self, logs: Mapping[str, float], margin: float, least: float = -inf
    ) -> dict[str, str]:
        return high_by_depth({layer: self.sign * x for layer, x in logs.items()}, margin, least)

    def _finding(
        self, named: str, lasting: list[str], norms: dict[str, float], reason: str, before: float
    ) -> Finding:
        count, onset = self._streaks[named]
        others = same_holds_for([layer for layer in lasting if layer != named])
        return Finding(
            summary=f"The gradient norm of layer `{named}` is {norms[named]:.3g}, "
            f"{'high' if self.sign > 0 else 'low'} for {count} measurements; {reason}.{others}",
            evidence={
                f"{self.participle}_layers": float(len(lasting)),
                "measured_layers": float(len(norms)),
                "layer": named,
                "layer_gradient_norm": norms[named],
                "layer_gradient_norm_before": before,
            },
            onset_step=onset,
        )
