"""Update ratio: the updates of layers are far too large for their weights, or one is not updated.

Formula
    ratio    = norm of the update of a layer divided by the norm of its weights; healthy trainings
               have about 1e-3
    level    = median of the ratios of all layers in a measurement, which a layer whose weights
               begin at 0 hardly moves
    high     = of at least 3 layers, level is above `extreme`, or above `high` in the last
               `in_a_row` measurements
    unmoved  = in each of the last `in_a_row` measurements the ratio of a layer is 0, as in all
               before, although less than half of the elements of its gradient are 0, and the median
               of the ratios that are not 0 is at least 1e-6
    Finding  = level above `extreme`; or unmoved, in half of the layers or in all layers of a block,
               while blocks whose names differ in numbers only are updated
    info     = high or unmoved otherwise

Units
    `high`, `extreme`: the update as a fraction of the weights. `in_a_row`: measurements.

Source
    A ratio of about 1e-3 is Karpathy's rule (CS231n). Fine-tuning and a warm-up have less, small
    models and the first steps of an adapter, whose second matrix begins at 0, have more. In
    bfloat16 an update below 1/512 of a weight is lost, so that norms, whose weights are about 1,
    may never move at a usual rate. Of an embedding, the sampled rows may not occur.

Defaults
    On 152 healthy trainings of 19 kinds (warm-up from 0, decay to 0, zero init) and 18 of TRL there
    is no warning; one of 8 in bfloat16 at a rate of 1e-5 has a finding at info. At 300 to 1000
    times the rate, the level of the second step, the first that is measured, is 0.67 to 1 in 7
    kinds of training of TRL (14 of 14 found), and at the usual rate at most 0.083: `extreme` 0.5 is
    between. As the weights grow with the updates, it is below 0.1 within 10 steps at any rate, so
    that only the first measurements show it. A block whose rate is 0 is found in 8 of 8 trainings
    after 8 measurements.
"""

from __future__ import annotations

from dataclasses import dataclass
from statistics import median
from typing import ClassVar

from sentinel.detectors._layers import has_whole_block, measured, names
from sentinel.model.finding import Clear, DetectorOutput, Finding, Severity
from sentinel.model.record import Event, Record
from sentinel.signals.layer_statistics import MAX_LAYERS

MAX_ZERO_SHARE = 0.5
"""Share of elements without a gradient from which on sampled weights may have none."""

MIN_LAYERS = 3
"""Layers whose median is no matter of a single one, whose weights may begin at 0."""

MIN_LEVEL = 1e-6
"""Ratio below which updates are lost in rounding, as at the end of a schedule."""

COUNT, ONSET = range(2)
"""State of a layer: measurements in a row without an update, and the step of the first."""


@dataclass
class LayerUpdateRatio:
    """Evaluates `layer_update_ratio` of all layers, with their gradients."""

    high: float = 0.2
    extreme: float = 0.5
    in_a_row: int = 8

    needs: ClassVar[frozenset[str]] = frozenset()
    signal: ClassVar[str] = "layer_update_ratio"
    severity: ClassVar[Severity] = Severity.WARNING
    remedy: ClassVar[str] = (
        "If the updates are too large, start again from before the onset with a lower {learning "
        "rate} or a longer {warm-up}. If a layer is not updated, check that its parameters are in "
        "the optimizer and that the learning rate of their group is not 0; in bfloat16, keep the "
        "weights that are trained in float32."
    )

    def __post_init__(self) -> None:
        self._high_count = self._high_step = 0
        self._unmoved: dict[str, list[int]] = {}
        self._moved: dict[str, bool] = {}
        """Layers that were updated since the start."""

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one measurement."""
        if record.event is Event.START:
            self.__post_init__()
        ratios = measured(record, "layer_update_ratio")
        moved = {layer: ratio for layer, ratio in ratios.items() if ratio > 0.0}
        self._moved.update(dict.fromkeys(moved, True))
        if len(self._moved) > MAX_LAYERS:
            self._moved = {layer: True for layer in self._moved if layer in ratios}
        # At a learning rate of 0, as in the first step of a warm-up, no layer moves.
        if not moved or median(moved.values()) < MIN_LEVEL:
            return None
        level = median(ratios.values()) if len(ratios) >= MIN_LAYERS else 0.0
        if level <= self.high:
            self._high_count = 0
        else:
            self._high_step = self._high_step if self._high_count else record.step
            self._high_count += 1
        self._update_unmoved(record, ratios)
        if level > self.extreme or self._high_count >= self.in_a_row:
            return self._high_finding(level, ratios)
        unmoved = [each for each, state in self._unmoved.items() if state[COUNT] >= self.in_a_row]
        return self._unmoved_finding(unmoved, ratios) if unmoved else Clear()

    def _update_unmoved(self, record: Record, ratios: dict[str, float]) -> None:
        norms = measured(record, "layer_grad_norm")
        zeros = measured(record, "layer_grad_zero_share")
        before, self._unmoved = self._unmoved, {}
        for layer in ratios:
            has_gradient = norms.get(layer, 0.0) > 0.0 and zeros.get(layer, 0.0) < MAX_ZERO_SHARE
            if layer not in self._moved and has_gradient:
                count, onset = before.get(layer, [0, record.step])
                self._unmoved[layer] = [count + 1, onset]

    def _high_finding(self, level: float, ratios: dict[str, float]) -> Finding:
        layer = max(ratios, key=ratios.__getitem__)
        since = f", and more than {self.high:.0%} since step {self._high_step}"
        return Finding(
            summary=f"A step changes half of the layers by {level:.0%} of their weights or more"
            f"{since if self._high_count > 1 else ''}; `{layer}` by {ratios[layer]:.0%}. "
            "About 0.1 % is usual.",
            evidence={
                "update_fraction": level,
                "layers": float(len(ratios)),
                "layer": layer,
                "update_fraction_of_layer": ratios[layer],
            },
            severity=None if level > self.extreme else Severity.INFO,
            onset_step=self._high_step,
        )

    def _unmoved_finding(self, unmoved: list[str], ratios: dict[str, float]) -> Finding:
        moved = [layer for layer, ratio in ratios.items() if ratio > 0.0]
        is_half = 2 * len(unmoved) >= len(ratios)
        count, onset = self._unmoved[unmoved[0]]
        more = f" The same holds for {names(unmoved[1:])}." if unmoved[1:] else ""
        return Finding(
            summary=f"The weights of layer `{unmoved[0]}` have not changed in {count} measurements "
            f"in a row, although it has a gradient; {len(moved)} of {len(ratios)} layers "
            f"change.{more}",
            evidence={
                "unmoved_layers": float(len(unmoved)),
                "layers": float(len(ratios)),
                "layer": unmoved[0],
                "update_fraction": 0.0,
            },
            severity=None if is_half or has_whole_block(unmoved, moved) else Severity.INFO,
            onset_step=onset,
        )
