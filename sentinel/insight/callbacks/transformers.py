"""Callbacks for `transformers.Trainer` and TRL's trainers.

from sentinel.insight.callbacks.transformers import LossSurfaceCallback, SharpnessCallback

DPOTrainer(..., callbacks=[LossSurfaceCallback(every=200), SharpnessCallback(every=50)]).train()

They work with and without `@sentinel.monitor`. With it, results are on the page of the run and in
its report; in any case `callback.results` has them.
"""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.trainer_utils import PREFIX_CHECKPOINT_DIR

from sentinel.insight.callbacks.gradient_flow import FlowSession
from sentinel.insight.callbacks.loss_measurement import (
    MeasurementCallback,
    SharpnessArguments,
    SurfaceArguments,
)
from sentinel.insight.callbacks.recording import RecordingCallback
from sentinel.insight.callbacks.trainer_loss import TrainerLoss, resumed_checkpoint, trainer_of


class _LossCallback(MeasurementCallback, TrainerCallback):  # type: ignore[misc]
    """Keeps inputs of the trainer's loss, and runs a measurement on them when it is due."""

    def on_train_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002 - names are those of Transformers
        """Find the trainer, and print what is computed and when."""
        self._begin(state.global_step, lambda: TrainerLoss(trainer_of(self), *self._options))

    def on_step_begin(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Keep the inputs of this step."""
        if self._loss is not None and not self._measurement.is_off:
            self._loss.keep()

    def on_optimizer_step(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Keep the learning rate of this step."""
        self._keep_learning_rates()

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Compute what is due."""
        if self._loss is not None:
            self._loss.end_keeping()
            self._measurement.end_step(state.global_step, self._loss)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Compute at a checkpoint, if that is wanted."""
        if self._loss is not None and self._measurement.schedule.on_save:
            self._measurement.run(state.global_step, self._loss)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Compute at the end, if that is wanted."""
        if self._loss is not None:
            self._loss.end_keeping()
        self._finish(state.global_step)


class LossSurfaceCallback(SurfaceArguments, _LossCallback):
    """Computes the loss surface around the weights every `every` steps, at saves or at the end.

    While an incident of a monitored run is firing it does so every `every_in_incident` steps: by
    default a fifth of `every`; None changes nothing.

    It takes at most `max_share` of the wall time of the training (5 % by default; None: no limit).
    The loss is that of the trainer on `batches` of its micro-batches: those of the first step, or
    with `newest`, which is the default for trainers that generate texts, those of the current one.
    `loss_fn(model, batch)` takes the place of the trainer's loss. With `sharpness`, the leading
    eigenvalue of the Hessian is logged too. With `snapshots`, up to so many copies of the chosen
    weights are kept in host memory, and the surface shows the path through them; `directions="pca"`
    is the plane of that path. Everything else goes to `sentinel.insight.loss_surface` (directions,
    bounds, dimensions, parameters, ...).

    Raises ValueError and TypeError for bad settings, and nothing later.
    """


class SharpnessCallback(SharpnessArguments, _LossCallback):
    """Logs `sharpness` and `sharpness_ratio` every `every` steps, at saves or at the end.

    The sharpness is the leading eigenvalue of the Hessian of the loss; the ratio relates it to the
    largest one with which the optimizer is stable at its learning rate (1 is the edge of
    stability). The other arguments are those of `LossSurfaceCallback`, and `parameters`, `k`,
    `tolerance` and `seed` go to `sentinel.insight.sharpness`.

    Raises ValueError and TypeError for bad settings, and nothing later.
    """


class TrajectoryCallback(RecordingCallback, TrainerCallback):  # type: ignore[misc]
    """Records the path of the weights every `every` steps; at the end it is stored with the run.

    `callback.recorder` is the `sentinel.insight.TrajectoryRecorder`, which takes the other
    arguments, and `callback.results` has the trajectory after the training. The distance to the
    reference is that to the trainer's own reference model, if it has one. In a monitored run,
    `distance_to_initial`, `distance_to_reference` and `distance_travelled` are logged. Each
    checkpoint of the trainer has the path so far, which a resumed training continues.
    """

    def on_train_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002 - names are those of Transformers
        """Record where the training starts."""
        reference = checkpoint = None
        with suppress(RuntimeError):
            trainer = trainer_of(self)
            reference = getattr(trainer, "ref_model", None)
            checkpoint = resumed_checkpoint(trainer)
        step = state.global_step
        self._recording.start(given["model"], step, reference, checkpoint=checkpoint)

    def on_log(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002
        """Keep the newest loss, which is logged after the end of its step."""
        loss = (given.get("logs") or {}).get("loss")
        if loss is not None:
            self._recording.log_loss(state.global_step, loss)

    def on_step_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Record the weights, if it is time."""
        self._recording.record(state.global_step)

    def on_save(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Store the path in the checkpoint, so that a resumed training continues it."""
        folder = f"{PREFIX_CHECKPOINT_DIR}-{state.global_step}"
        self._recording.save(Path(args.output_dir, folder), is_writing=state.is_world_process_zero)

    def on_train_end(self, args: Any, state: Any, control: Any, **_: Any) -> None:  # noqa: ARG002
        """Store the trajectory with the run."""
        self._recording.end(state.global_step)


class GradientFlowCallback(TrainerCallback):  # type: ignore[misc]
    """Measures the gradient of each layer, within 1 % of the time of the training.

    It does what `@sentinel.monitor(insight="gradient_flow")` does. If the run is not monitored
    yet, it monitors it, with the arguments of `sentinel.monitor`. `every` is the stride in steps;
    the default adapts to the cost.

    Raises SettingsError for an unknown argument or an invalid value, and nothing later.
    """

    def __init__(self, *, every: int | None = None, **settings: Any) -> None:
        self._session = FlowSession(every, settings)

    def on_epoch_begin(self, args: Any, state: Any, control: Any, **given: Any) -> None:  # noqa: ARG002 - names are those of Transformers
        """Start, after the callbacks that start a session for the whole training."""
        self._session.measure(given.get("model"))

    def on_train_end(self, *_: Any, **__: Any) -> None:
        """End the session, if this callback started it."""
        self._session.end()
