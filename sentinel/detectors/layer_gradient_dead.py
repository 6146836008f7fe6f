"""Dead layer: the gradient of a layer is exactly 0 while that of other layers is not.

Formula
    zero     = a layer that is trained, since its parameters require a gradient and are in the
               optimizer, has none or one of exactly 0 in a measurement in which another layer's is
               not 0
    pause    = consecutive zeros of a layer that ended; the longest of all layers counts
    Finding  = a layer has been zero in the last `in_a_row` measurements, and in `times` as many as
               the longest pause. The dead layer that is nearest to the output is named first
    info     = a gradient of exactly 0 has less than half of the layers, and no dead layer has
               others of its kind that are not dead: layers whose names differ in numbers only

Units
    `in_a_row`: measurements. `times`: plain factor.

Source
    Lu et al. 2019 (arXiv:1903.06733) on dying ReLU networks. A layer whose units are all off passes
    no gradient on, so that every layer before it is dead, too. `detach()` and `torch.no_grad()` cut
    off layers in the same way, and so do gradients below the range of float16. An expert that gets
    no token in a step pauses, and so does a layer that is dropped at random. Layers that are
    frozen on purpose require no gradient and are not measured; an encoder that is only used under
    `torch.no_grad()`, and embeddings with sparse gradients, have none.

Defaults
    On 152 healthy trainings of 19 kinds (experts that get a token in few of the steps, layers that
    are dropped, adapters, zero init, rewards without a spread) and 18 of TRL there is no finding,
    at info either. A dead layer and a detached block are found in 8 of 8 trainings each, after 8
    measurements (`in_a_row`). `times` 4: of layers that pause at random, the longest pause
    grows with the logarithm of their number only, so that one 4 times as long is no chance.
"""

from __future__ import annotations

from dataclasses import dataclass

from sentinel.detectors._layers import (
    are_part_of_kind,
    drop_absent,
    measured,
    same_holds_for,
    without_gradient,
)
from sentinel.model.finding import CLEAR, DetectorDefaults, DetectorOutput, Finding, Scope, Severity
from sentinel.model.record import LAYERS, START, Record
from sentinel.signals.layer_statistics import MAX_LAYERS, by_layer

COUNT, ONSET, NORM_BEFORE = range(3)
"""State of a layer: zeros in a row, the step of the first, and the last norm that was not 0."""


@dataclass
class LayerGradientDead(DetectorDefaults):
    """Evaluates `layer_grad_norm` of each layer."""

    in_a_row: int = 8
    times: float = 4.0

    events = frozenset({START, LAYERS})
    signal = "layer_grad_norm"
    scope = Scope.TRAINING
    remedy = (
        "Check that the named layer is connected to the loss: no `detach()`, no "
        "`torch.no_grad()`, no adapter that is switched off. If its units are all off (ReLU), "
        "lower {learning rate} or change the initial weights, and start again from before the "
        "onset. "
        "If the layer is meant to be frozen, set its `requires_grad` to False."
    )

    def __post_init__(self) -> None:
        self._layers: dict[str, list[float]] = {}
        self._longest_pause = 0

    def update(self, record: Record) -> DetectorOutput:
        """Evaluate one measurement."""
        if record.event is START:
            self.__post_init__()
        absent = without_gradient(record)
        known = measured(record, "layer_grad_norm")
        # In the order of the model, so that the layer nearest to the output is the last dead one.
        layers = by_layer(record.values, "layer_grad_norm")
        norms = {each: known.get(each, 0.0) for each in layers if each in known or each in absent}
        # Without any gradient, as in a step without a spread of rewards, no layer is the reason.
        if not any(norms.values()):
            return None
        for layer, norm in norms.items():
            self._update_layer(self._layers.setdefault(layer, [0.0, 0.0, 0.0]), norm, record.step)
        drop_absent(self._layers, norms, MAX_LAYERS)
        needed = max(self.in_a_row, self.times * self._longest_pause)
        dead = [layer for layer in norms if self._layers[layer][COUNT] >= needed]
        return self._finding(dead[::-1], norms, absent) if dead else CLEAR

    def _update_layer(self, state: list[float], norm: float, step: int) -> None:
        if norm == 0.0:
            state[ONSET] = state[ONSET] if state[COUNT] else float(step)
            state[COUNT] += 1
            return
        self._longest_pause = max(self._longest_pause, int(state[COUNT]))
        state[COUNT], state[NORM_BEFORE] = 0.0, norm

    def _finding(self, dead: list[str], norms: dict[str, float], absent: set[str]) -> Finding:
        alive = [layer for layer, norm in norms.items() if norm > 0.0]
        is_half = 2 * len([layer for layer in dead if layer not in absent]) >= len(norms)
        count, onset, before = self._layers[dead[0]]
        since = f"since step {onset:.0f}" if before else "since the first measurement"
        others = same_holds_for(dead[1:])
        return Finding(
            summary=f"The gradient of layer `{dead[0]}` is exactly 0 {since}, in {count:.0f} "
            f"measurements in a row; {len(alive)} of {len(norms)} layers have one.{others}",
            evidence={
                "dead_layers": float(len(dead)),
                "measured_layers": float(len(norms)),
                "layer": dead[0],
                "layer_gradient_norm_before": before,
            },
            severity=None if is_half or are_part_of_kind(dead, alive) else Severity.INFO,
            onset_step=int(onset),
        )
