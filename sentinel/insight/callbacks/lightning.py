"""Callbacks for `lightning.Trainer`.

from sentinel.insight.callbacks.lightning import LightningLossSurfaceCallback

Trainer(..., callbacks=[LightningLossSurfaceCallback(every=200)]).fit(module)

They work with and without `@sentinel.monitor`. With it, results are on the page of the run and in
its report; in any case `callback.results` has them. The package, `lightning` or
`pytorch_lightning`, is the one that is loaded.
"""

from __future__ import annotations

from typing import Any

from sentinel.insight.callbacks.gradient_flow import FlowSession
from sentinel.insight.callbacks.loss_measurement import (
    MeasurementCallback,
    SharpnessArguments,
    SurfaceArguments,
)
from sentinel.insight.callbacks.module_loss import ModuleLoss
from sentinel.insight.callbacks.recording import RecordingCallback
from sentinel.integrations.callbacks.lightning import _lightning


class _LossCallback(MeasurementCallback, _lightning.Callback):  # type: ignore[misc]
    """Keeps batches of the training, and runs a measurement on them when it is due."""

    _last_step = 0
    _is_saving = False

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Print what is computed and when."""
        self._last_step = trainer.global_step
        self._begin(self._last_step, lambda: ModuleLoss(trainer, pl_module, *self._options))

    def on_train_batch_start(
        self,
        trainer: Any,  # noqa: ARG002 - names are those of Lightning
        pl_module: Any,  # noqa: ARG002
        batch: Any,
        batch_idx: int,  # noqa: ARG002
    ) -> None:
        """Keep the batch."""
        if self._loss is not None and not self._measurement.is_off:
            self._loss.keep(batch)

    def on_before_optimizer_step(self, trainer: Any, pl_module: Any, optimizer: Any) -> None:  # noqa: ARG002
        """Keep the learning rate of this step."""
        self._keep_learning_rates()

    def on_train_batch_end(self, trainer: Any, *_: Any, **__: Any) -> None:
        """Compute what is due."""
        step = trainer.global_step
        if self._loss is None or (step == self._last_step and not self._is_saving):
            return
        is_saving, self._is_saving = self._is_saving, False
        self._last_step = step
        if is_saving and self._measurement.schedule.on_save:
            self._measurement.run(step, self._loss)
        else:
            self._measurement.end_step(step, self._loss)

    def on_save_checkpoint(self, *_: Any, **__: Any) -> None:
        """Compute at the end of this batch: the checkpoint is being written now."""
        self._is_saving = True

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Compute at the end, if that is wanted."""
        self._finish(trainer.global_step)


class LightningLossSurfaceCallback(SurfaceArguments, _LossCallback):
    """Computes the loss surface around the weights every `every` steps, at saves or at the end.

    While an incident of a monitored run is firing it does so every `every_in_incident` steps: by
    default a fifth of `every`; None changes nothing.

    It takes at most `max_share` of the wall time of the training (5 % by default; None: no limit).
    The loss is `training_step` of the module on its first `batches` batches, or with `newest` on
    the current ones. `loss_fn(module, batch)` takes its place, as it must for a module with manual
    optimization. With `sharpness`, the leading eigenvalue of the Hessian is logged too. With
    `snapshots`, up to so many copies of the chosen weights are kept in host memory, and the surface
    shows the path through them; `directions="pca"` is the plane of that path. Everything else goes
    to `sentinel.insight.loss_surface` (directions, bounds, dimensions, parameters, ...).

    Raises ValueError and TypeError for bad settings, and nothing later.
    """


class LightningSharpnessCallback(SharpnessArguments, _LossCallback):
    """Logs `sharpness` and `sharpness_ratio` every `every` steps, at saves or at the end.

    See `sentinel.insight.callbacks.transformers.SharpnessCallback`; the loss is that of
    `LightningLossSurfaceCallback`.
    """


class LightningTrajectoryCallback(RecordingCallback, _lightning.Callback):  # type: ignore[misc]
    """Records the path of the weights every `every` steps; at the end it is stored with the run.

    `callback.recorder` is the `sentinel.insight.TrajectoryRecorder`, which takes the other
    arguments, and `callback.results` has the trajectory after the training. In a monitored run,
    `distance_to_initial`, `distance_to_reference` and `distance_travelled` are logged. Each
    checkpoint of the trainer has the path so far, which a resumed training continues.
    """

    def __init__(self, *, every: int = 10, **settings: Any) -> None:
        super().__init__(every=every, **settings)
        self._last_step = 0
        self._key = {"every": every, **{name: repr(each) for name, each in settings.items()}}

    @property
    def state_key(self) -> str:
        """The name of its state in a checkpoint."""
        return str(self._generate_state_key(**self._key))

    def state_dict(self) -> dict[str, Any]:
        """The path so far, which a resumed training continues: plain values and tensors."""
        return self._recording.state()

    def load_state_dict(self, state_dict: dict[str, Any]) -> None:
        """Continue that path when the training starts."""
        self._recording.continued = state_dict

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:
        """Record where the training starts."""
        self._last_step = trainer.global_step
        self._recording.start(pl_module, trainer.global_step)

    def on_train_batch_end(self, trainer: Any, pl_module: Any, outputs: Any, *_: Any) -> None:  # noqa: ARG002 - names are those of Lightning
        """Record the weights, if it is time."""
        step = trainer.global_step
        if step == self._last_step:
            return
        self._last_step = step
        self._recording.loss = outputs.get("loss") if isinstance(outputs, dict) else outputs
        self._recording.record(step)

    def on_train_end(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Store the trajectory with the run."""
        self._recording.end(trainer.global_step)


class LightningGradientFlowCallback(_lightning.Callback):  # type: ignore[misc]
    """Measures the gradient of each layer, within 1 % of the time of the training.

    It does what `@sentinel.monitor(insight="gradient_flow")` does. If the run is not monitored
    yet, it monitors it, with the arguments of `sentinel.monitor`. `every` is the stride in steps;
    the default adapts to the cost.

    Raises SettingsError for an unknown argument or an invalid value, and nothing later.
    """

    def __init__(self, *, every: int | None = None, **settings: Any) -> None:
        super().__init__()
        self._session = FlowSession(every, settings)

    def on_train_start(self, trainer: Any, pl_module: Any) -> None:  # noqa: ARG002
        """Start, after the callbacks that start a session when `fit` is set up."""
        self._session.measure(pl_module)

    def teardown(self, trainer: Any, pl_module: Any, stage: str) -> None:  # noqa: ARG002
        """End the session, if this callback started it."""
        self._session.end()

    def on_exception(self, trainer: Any, pl_module: Any, exception: BaseException) -> None:  # noqa: ARG002
        """End the session with that exception as its outcome."""
        self._session.end(exception)
