"""Statistics of the gradient of each layer, measured at some steps of the training loop.

Gradients are measured when they are complete and unscaled, before the trainer clips them. Of
replicas only the lowest rank measures; of sharded gradients every rank reports sums over its part,
which the agent combines, so that training exchanges nothing. Nothing waits for a device.

The stride between measurements keeps their time below `MAX_STEP_TIME_FRACTION` of a step. An error
here switches the measurement off, and nothing else.
"""

from __future__ import annotations

import sys
import weakref
from collections import deque
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from math import isfinite, nan
from time import perf_counter
from typing import Any

from sentinel.client.capture import scalars
from sentinel.client.capture.device_copy import is_capturing_graph
from sentinel.client.capture.grad_norm import SHARDED_STRIDES, GradNorm
from sentinel.client.capture.layer_measurement import (
    Layers,
    LayersChangedError,
    Measurement,
    plan_layers,
    with_noise,
)
from sentinel.client.recorder import Recorder
from sentinel.model.record import Event
from sentinel.signals.layer_statistics import LayerSum, sums_to_attributes
from sentinel.transport.record_codec import StepStamp

NAME = "gradient_flow"
"""The name of this measurement in `monitor(insight=…)` and in the metadata of the run."""

MAX_STEP_TIME_FRACTION = 0.005
"""Half of the share that is promised: the clock here does not see what a measurement costs the
caches of the processor, or the device."""
WARM_UP_MEASUREMENTS, WARM_UP_STRIDE = 16, 10
"""The first measurements are taken at least at every tenth step, whatever they cost."""
MIN_INTERVAL_SECONDS, RANKS_PER_INTERVAL = 1.0, 64
"""Least time between later measurements, for every 64 ranks that report them."""
MIN_DEVICE_STRIDE = 10
"""On a GPU, whose time is not seen, reading each gradient once is much less than ten steps."""
MIN_NOISE_MEASUREMENTS, NOISE_DECAY = 4, 0.9
TIMES_COMPARED = 5
"""Measurements, and steps, of which the median time is taken."""
PLAN_AGAIN_STEPS = 10
"""Steps after which parameters that changed are grouped again; twice as many each time."""

IDLE, SAMPLE, MEASURE = range(3)
"""What to do at the current step: nothing, sample the gradient for the next one, or all."""


class GradientFlow:
    """Measures the gradients of one optimizer's parameters.

    `rank` is this rank's number in the run.
    """

    def __init__(self, recorder: Recorder, grad_norm: GradNorm, rank: int = 0) -> None:
        self._recorder, self._grad_norm, self._rank = recorder, grad_norm, rank
        self.every: int | None = None
        """Stride in steps; None for one that adapts to the cost."""
        self.model_ref: Callable[[], Any] = lambda: None
        """Weak reference to the model that owns the parameters; of None, any of the process may."""
        self.phase = IDLE
        self.disabled = False
        self.measurement_count = 0
        self.costs_seconds: deque[float] = deque(maxlen=TIMES_COMPARED)
        """Times of the last measurements."""
        self._step_times: deque[float] = deque(maxlen=TIMES_COMPARED)
        self._layers: Layers | None = None
        self._plan_count = 0
        self._plan_step = 0
        """Step from which on changed parameters may be grouped again."""
        self._steps = self._wake_step = 0
        self._cost_seconds = 0.0
        self._is_captured = False
        self._measured: Measurement | None = None
        self._arriving: tuple[Measurement, StepStamp | None] | None = None
        self._noise = NoiseAverages()

    def before_backward(self) -> None:
        """A backward pass begins: what was captured so far is not the whole gradient."""
        self._is_captured = False

    def before_clip(self, optimizer: Any, clipped: Sequence[Any] | None = None) -> None:
        """The gradients of the optimizer, if it is known, are complete and may be clipped now.

        `clipped` are parameters or gradients, by default the optimizer's. Others are ignored: those
        of the optimizer may still be scaled.
        """
        if self.phase and optimizer is not None:
            self._run(self._before_clip, optimizer, clipped)

    def before_step(self, optimizer: Any, *, has_closure: bool) -> None:
        """A step of the optimizer begins; with a closure, its gradients are computed inside it."""
        if self.phase:
            self._run(self._before_step, optimizer, has_closure)

    def after_step(self, optimizer: Any) -> None:
        """A step of the optimizer ended."""
        if self.phase:
            self._run(self._after_step, optimizer)

    def end_step(self, step_time: float) -> None:
        """The training step, which took that many seconds, is complete but not yet recorded."""
        self._steps += 1
        self._step_times.append(step_time)
        if self._steps >= self._wake_step or self._arriving is not None:
            self._run(self._end_step)

    def flush(self) -> None:
        """Write what has arrived, at the end of the run."""
        if self._measured is None and self._arriving is None:
            return
        self._run(self._write_arrived)
        self._run(self._accept_measured)
        self._run(self._write_arrived)

    def _run(self, body: Callable[..., None], *args: Any) -> None:
        """Run a part of the measurement; an error switches it off and is counted."""
        if self.disabled:
            return
        began = perf_counter()
        try:
            with sys.modules["torch"].no_grad():
                body(*args)
        except LayersChangedError:
            self._layers, self._is_captured = None, False
        except Exception as error:
            self.disabled, self.phase = True, IDLE
            self._layers = self._measured = self._arriving = None
            where = body.__name__.strip("_")
            state = f"off: {type(error).__name__} in {where}"
            self._recorder.record_event(Event.METADATA, None, {f"patch/{NAME}": state})
            self._recorder.try_lock.guard.count_error(error)
        self._cost_seconds += perf_counter() - began

    def _before_clip(self, optimizer: Any, clipped: Sequence[Any] | None) -> None:
        if clipped is not None:
            ids = {*map(id, clipped)}
            if not any(id(p) in ids or id(p.grad) in ids for p in trained_parameters(optimizer)):
                return
        self._capture(optimizer)

    def _before_step(self, optimizer: Any, has_closure: bool) -> None:
        if not has_closure:
            self._capture(optimizer)
        if self.phase == MEASURE and not is_capturing_graph():
            parameters = trained_parameters(optimizer)
            layers = self._plan(optimizer, parameters)
            if layers is not None:
                layers.sample_weights(parameters)

    def _capture(self, optimizer: Any) -> None:
        """Sample the gradients, and measure them if this step is measured."""
        if self._is_captured or is_capturing_graph():
            return
        parameters = trained_parameters(optimizer)
        layers = self._plan(optimizer, parameters)
        if layers is not None:
            scale = getattr(optimizer, "grad_scale", None)
            layers.capture(parameters, scale, is_measured=self.phase == MEASURE)
            self._is_captured = True

    def _after_step(self, optimizer: Any) -> None:
        # With a closure that does not clip, the gradients are complete only now.
        self._capture(optimizer)
        if self._layers is None or not self._is_captured or self.phase != MEASURE:
            return
        parameters, found_inf = trained_parameters(optimizer), getattr(optimizer, "found_inf", None)
        self._measured = self._layers.finish(parameters, found_inf, self._copy)
        if self._measured is None:
            self._recorder.ring.count_drop("pending")

    def _copy(self, vector: Any, deliver: Callable[[list[float]], None]) -> bool:
        if vector.device.type in scalars.ASYNC_DEVICE_TYPES:
            return self._recorder.device_copies.start_vector(vector, deliver)
        deliver(vector.tolist())
        return True

    def _end_step(self) -> None:
        self._write_arrived()
        self._accept_measured()
        layers = self._layers
        if layers is not None:
            layers.end_step()
        self._is_captured = False
        stride = self.stride()
        due = (self._steps // stride + 1) * stride
        self._wake_step, self.phase = due - 2, IDLE
        if layers is not None and not layers.is_sharded and self._rank != 0:
            # A replica: the lowest rank measures the same. Parameters may change later.
            self._wake_step = self._steps + SHARDED_STRIDES[-1]
        elif due == self._steps + 1:
            self.phase = MEASURE
        elif due == self._steps + 2:
            self.phase = SAMPLE

    def _accept_measured(self) -> None:
        """What was measured at the step that ends waits for its numbers, and for the step's."""
        measured, self._measured = self._measured, None
        if measured is None:
            return
        self.measurement_count += 1
        self.costs_seconds.append(self._cost_seconds)
        self._cost_seconds = 0.0
        if self._arriving is None:
            self._arriving = measured, None
        else:
            self._recorder.ring.count_drop("pending")

    def _write_arrived(self) -> None:
        """Write what was measured at an earlier step, once it has arrived.

        Only the end of the next step fixes the number of a step: until then the trainer may log it.
        """
        if self._arriving is None:
            return
        measurement, stamp = self._arriving
        if stamp is None:
            clock = self._recorder.clock
            stamp = StepStamp(clock.step, clock.step_index, self._recorder.ring.time)
            self._arriving = measurement, stamp
        self._recorder.device_copies.deliver_vectors()
        layers = self._layers
        if measurement.missing > 0:
            return
        self._arriving = None
        if layers is None or measurement.is_skipped:
            return
        attributes = sums_to_attributes(
            layers.names,
            self._noise.add(measurement.sums),
            measurement.histogram,
            layers.world_size if layers.is_sharded else 1,
            is_lowest_rank=self._rank == 0,
        )
        self._recorder.record_layers(stamp, attributes)

    def stride(self) -> int:
        """Steps between measurements. Each stride is a multiple of the shorter ones.

        Ranks with different costs have common steps then, at which sums can be combined.
        """
        if self.every is not None:
            return self.every
        layers, wanted = self._layers, 1.0
        # Medians: the first times, and those of a machine that is busy, are no measure.
        step_time = _median(self._step_times) if self._step_times else 0.0
        if step_time > 0.0 and self.measurement_count:
            cost = _median(self.costs_seconds) if len(self.costs_seconds) > 1 else 0.0
            ranks = layers.world_size if layers is not None and layers.is_sharded else 1
            interval = MIN_INTERVAL_SECONDS * max(1.0, ranks / RANKS_PER_INTERVAL)
            wanted = max(cost / MAX_STEP_TIME_FRACTION, interval) / step_time
            if self.measurement_count < WARM_UP_MEASUREMENTS:
                wanted = min(wanted, WARM_UP_STRIDE)
            if layers is not None and layers.is_on_device:
                wanted = max(wanted, MIN_DEVICE_STRIDE)
        return next((each for each in SHARDED_STRIDES if each >= wanted), SHARDED_STRIDES[-1])

    def _plan(self, optimizer: Any, parameters: Sequence[Any]) -> Layers | None:
        """The layers of these parameters; None without any, and for some steps after a change."""
        if self._layers is None or not self._layers.covers(parameters):
            self._layers = self._arriving = self._measured = None
            if self._steps < self._plan_step:
                return None
            self._plan_step = self._steps + (PLAN_AGAIN_STEPS << min(self._plan_count, 20))
            self._plan_count += 1
            names = [
                name for group in optimizer.param_groups for name in group.get("param_names", ())
            ]
            self._layers = plan_layers(
                parameters, self.model_ref(), names, self._grad_norm.flattened_shares
            )
            self._noise = NoiseAverages()
        return self._layers if self._layers.devices else None


def _median(times: Iterable[float]) -> float:
    # The module `statistics` takes 8 ms to import.
    ordered = sorted(times)
    return ordered[len(ordered) // 2]


@dataclass
class NoiseAverages:
    """Averages over measurements of the products of which a layer's noise scale is made.

    With gradients of two batches at almost the same weights, the mean of their product is the
    square |G|² of the true gradient, and that of a gradient with itself |G|² + tr(Σ)/B. The noise
    scale tr(Σ)/|G|² (McCandlish et al. 2018, "An Empirical Model of Large-Batch Training"), in
    batches of B, is the difference divided by the first.
    """

    by_layer: dict[int, tuple[int, float, float]] = field(default_factory=dict)
    """Number of measurements, mean square and mean product."""

    def add(self, sums: Sequence[LayerSum]) -> list[LayerSum]:
        """The sums of all layers with the averages up to now; NaN while they are of too few."""
        return [self._add(layer, each) for layer, each in enumerate(sums)]

    def _add(self, layer: int, sums: LayerSum) -> LayerSum:
        count, square, dot = self.by_layer.get(layer, (0, 0.0, 0.0))
        new_square = (sums.sample_norm**2 + sums.last_norm**2) / 2.0
        if sums.last_norm > 0.0 and isfinite(new_square) and isfinite(sums.dot):
            count += 1
            weight = max(1.0 - NOISE_DECAY, 1.0 / count)
            square += weight * (new_square - square)
            dot += weight * (sums.dot - dot)
            self.by_layer[layer] = count, square, dot
        if count < MIN_NOISE_MEASUREMENTS:
            return with_noise(sums, nan, nan)
        return with_noise(sums, square, dot)


def trained_parameters(optimizer: Any) -> list[Any]:
    """The parameters that the optimizer trains, in its order."""
    return [p for group in optimizer.param_groups for p in group["params"] if p.requires_grad]


def enable(model: Any = None, *, every: int | None = None) -> bool:
    """Measure the gradients of the run of this process from now on; whether there is a run.

    `model` owns the parameters of the optimizer, by default any model of the process; `every` is
    the stride in steps, by default one that keeps the time below 1 % of a step. A run that measures
    already takes over what is given here.
    """
    from sentinel.client.session import current_session  # noqa: PLC0415 - it imports this module

    session = current_session()
    flow = None if session is None else session.measure_gradient_flow()
    if flow is None:
        return False
    flow.every = flow.every if every is None else every
    flow.model_ref = flow.model_ref if model is None else weakref.ref(model)
    return True
