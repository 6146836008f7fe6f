"""Update ratio: updates of layers are far too large for their weights, or one is not updated.

Formula
    ratio    = norm of the update of a layer divided by the norm of its weights; healthy trainings
               have about 1e-3
    level    = median of the ratios of all layers in a measurement, which a layer whose weights
               begin at 0 hardly moves
    high     = of at least 3 layers, level is above `extreme`, or above `high` in the last
               `in_a_row` measurements; of two layers, the lower ratio is above 2
    fast     = the ratio of a layer was above `high` and 30 times the median of all, and has been 5
               times that median or more since, as if its group had another learning rate; its
               weights did not begin at 0, where the first ratio is undefined or above 10
    unmoved  = in each of the last `in_a_row` measurements the ratio of a layer is 0, as in all
               before, although less than half of the elements of its gradient are 0, and the median
               of the ratios that are not 0 is at least 1e-6
    Finding  = level above `extreme`; fast in the last `in_a_row` measurements; or unmoved, in half
               of the layers or in all layers of a block, while blocks whose names differ in numbers
               only are updated
    info     = high, fast or unmoved otherwise

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
    after 8 measurements. One of four blocks at 100 times the rate of the others changes by 30 to
    100 % in the first step, 104 times the median, and by 10 to 20 times the median 80 steps later.
    Of healthy layers, with heads at 10 times and second matrices of adapters at 16 times the rate,
    embeddings of positions and blocks that begin at 0, none is above `high`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from statistics import median

from sentinel.detectors._layers import (
    COUNT,
    drop_absent,
    extended_streaks,
    has_whole_block,
    measured,
    same_holds_for,
)
from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Severity
from sentinel.model.record import LAYERS, START, Record
from sentinel.signals.layer_statistics import MAX_LAYERS, by_layer

MAX_ZERO_SHARE = 0.5
"""Share of elements without a gradient from which on sampled weights may have none."""

MIN_LAYERS, EXTREME_OF_TWO = 3, 2.0
"""Layers whose median is no matter of a single one, whose weights may begin at 0; the ratio that
both of two must exceed: from 0, the second step has a ratio of about 1."""

FAST_FACTOR, STILL_FAST_FACTOR = 30.0, 5.0
"""Factors on the median of all layers, from which on a layer is fast and up to which it remains so:
its weights grow with its updates. Rates of groups differ by a factor of 16 at most on purpose."""

MAX_FIRST_RATIO = 10.0
"""First ratio above which the weights of a layer are nearly 0, as those of a layer scale."""

MIN_LEVEL = 1e-6
"""Ratio below which updates are lost in rounding, as at the end of a schedule."""


@dataclass
class LayerUpdateRatio(DetectorDefaults):
    """Evaluates `layer_update_ratio` of all layers, with their gradients."""

    high: float = 0.2
    extreme: float = 0.5
    in_a_row: int = 8

    events = frozenset({START, LAYERS})
    signal = "layer_update_ratio"
    remedy = (
        "If the updates are too large, lower {learning rate} or lengthen {warm-up}, and start "
        "again from before the onset; if those of few layers are, correct the learning rate of "
        "their parameter group. If a layer is not updated, check that its parameters are in "
        "the optimizer and that the learning rate of their group is not 0; in bfloat16, keep the "
        "weights that are trained in float32."
    )

    def __post_init__(self) -> None:
        self._high_count = self._high_step = 0
        self._fast: dict[str, list[int]] = {}
        self._fast_peak = 0.0
        self._begins_at_zero: dict[str, bool] = {}
        self._unmoved: dict[str, list[int]] = {}
        self._moved: dict[str, bool] = {}
        """Layers that were updated since the start."""

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one measurement."""
        if record.event is START:
            self.__post_init__()
        ratios = measured(record, "layer_update_ratio")
        moved = {layer: ratio for layer, ratio in ratios.items() if ratio > 0.0}
        self._moved.update(dict.fromkeys(moved, True))
        if len(self._moved) > MAX_LAYERS:
            self._moved = {layer: True for layer in self._moved if layer in ratios}
        # At a learning rate of 0, as in the first step of a warm-up, no layer moves.
        if not moved or median(moved.values()) < MIN_LEVEL:
            return None
        level = _level(ratios)
        if level <= self.high:
            self._high_count = 0
        else:
            self._high_step = self._high_step if self._high_count else record.step
            self._high_count += 1
        self._update_fast(record, ratios, level)
        self._update_unmoved(record, ratios)
        if level > self.extreme or self._high_count >= self.in_a_row:
            return self._high_finding(level, ratios)
        if self._fast:
            return self._fast_finding(level, ratios)
        unmoved = [each for each, state in self._unmoved.items() if state[COUNT] >= self.in_a_row]
        return self._unmoved_finding(unmoved, ratios) if unmoved else CLEAR

    def _update_fast(self, record: Record, ratios: dict[str, float], level: float) -> None:
        for layer, ratio in by_layer(record.values, "layer_update_ratio").items():
            # Not comparable if it is NaN.
            self._begins_at_zero.setdefault(layer, not ratio <= MAX_FIRST_RATIO)
        drop_absent(self._begins_at_zero, ratios, MAX_LAYERS)
        fast = [
            layer
            for layer, ratio in ratios.items()
            if (ratio > max(self.high, FAST_FACTOR * level) and not self._begins_at_zero[layer])
            or (layer in self._fast and ratio > STILL_FAST_FACTOR * level)
        ]
        # Without a level there is nothing to compare with.
        self._fast = extended_streaks(self._fast, fast if level > 0.0 else [], record.step)
        self._fast_peak = max([ratios[layer] for layer in self._fast] + [self._fast_peak])
        if not self._fast:
            self._fast_peak = 0.0

    def _update_unmoved(self, record: Record, ratios: dict[str, float]) -> None:
        norms = measured(record, "layer_grad_norm")
        zeros = measured(record, "layer_grad_zero_share")
        unmoved = [
            layer
            for layer in ratios
            if layer not in self._moved
            and norms.get(layer, 0.0) > 0.0
            and zeros.get(layer, 0.0) < MAX_ZERO_SHARE
        ]
        self._unmoved = extended_streaks(self._unmoved, unmoved, record.step)

    def _high_finding(self, level: float, ratios: dict[str, float]) -> Finding:
        layer = max(ratios, key=ratios.__getitem__)
        since = f", and more than {self.high:.0%} since step {self._high_step}"
        return Finding(
            summary=f"A step changes half of the layers by {level:.0%} of their weights or more"
            f"{since if self._high_count > 1 else ''}; `{layer}` by {ratios[layer]:.0%}. "
            "About 0.1 % is usual.",
            evidence={
                "update_fraction": level,
                "measured_layers": float(len(ratios)),
                "layer": layer,
                "update_fraction_of_layer": ratios[layer],
            },
            severity=None if level > self.extreme else Severity.INFO,
            onset_step=self._high_step,
        )

    def _fast_finding(self, level: float, ratios: dict[str, float]) -> Finding:
        layers = sorted(self._fast, key=ratios.__getitem__, reverse=True)
        named, others = layers[0], layers[1:]
        count, onset = self._fast[named]
        is_lasting = count >= self.in_a_row
        return Finding(
            summary=f"A step changes layer `{named}` by {ratios[named]:.2%} of its weights, "
            f"{ratios[named] / level:.0f} times the median of {len(ratios)} layers; the largest "
            f"change since step {onset} was {self._fast_peak:.0%}.{same_holds_for(others)}",
            evidence={
                "measured_layers": float(len(ratios)),
                "layer": named,
                "update_fraction_of_layer": ratios[named],
                "median_update_fraction": level,
                "largest_update_fraction": self._fast_peak,
            },
            severity=None if is_lasting else Severity.INFO,
            onset_step=onset,
        )

    def _unmoved_finding(self, unmoved: list[str], ratios: dict[str, float]) -> Finding:
        moved = [layer for layer, ratio in ratios.items() if ratio > 0.0]
        is_half = 2 * len(unmoved) >= len(ratios)
        count, onset = self._unmoved[unmoved[0]]
        more = same_holds_for(unmoved[1:])
        return Finding(
            summary=f"The weights of layer `{unmoved[0]}` have not changed in {count} measurements "
            f"in a row, although it has a gradient; {len(moved)} of {len(ratios)} layers "
            f"change.{more}",
            evidence={
                "unmoved_layers": float(len(unmoved)),
                "measured_layers": float(len(ratios)),
                "layer": unmoved[0],
                "update_fraction": 0.0,
            },
            severity=None if is_half or has_whole_block(unmoved, moved) else Severity.INFO,
            onset_step=onset,
        )


def _level(ratios: Mapping[str, float]) -> float:
    """The ratio of half of the layers or more; 0 if there are too few."""
    if len(ratios) >= MIN_LAYERS:
        return median(ratios.values())
    lowest = min(ratios.values())
    return lowest if len(ratios) > 1 and lowest > EXTREME_OF_TWO else 0.0
