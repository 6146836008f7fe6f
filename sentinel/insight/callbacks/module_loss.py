"""The loss of a Lightning module on a kept batch, computed without a trace.

`training_step` logs, counts and appends. Here it is called on the batch of an earlier call, with
logging off, and what it changes in the module is undone.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from importlib import import_module
from typing import Any

from sentinel.insight.callbacks.loss_measurement import KeptLoss, LossFunction
from sentinel.insight.callbacks.plain_state import (
    attribute_set,
    copy_of_inputs,
    first_argument,
    ignore,
    learning_rates_set,
    plain_state_preserved,
)

_SILENCED = ("log", "log_dict")


class ModuleLoss(KeptLoss):
    """Keeps batches of a training, and computes `training_step` on them for any weights.

    Raises ValueError for a module with manual optimization, whose `training_step` steps optimizers.
    """

    def __init__(
        self,
        trainer: Any,
        module: Any,
        batches: int = 1,
        newest: bool | None = None,
        loss_fn: LossFunction | None = None,
    ) -> None:
        if loss_fn is None and not module.automatic_optimization:
            raise ValueError(
                f"training_step of {type(module).__name__} steps its optimizers itself "
                "(automatic_optimization is False), so that it cannot be called for a loss alone. "
                "Give the callback loss_fn=, a function of module and batch that returns the loss."
            )
        super().__init__(batches, bool(newest), loss_fn, is_reporting=trainer.is_global_zero)
        self.trainer, self.module = trainer, module

    @property
    def model(self) -> Any:
        """The module, without the wrapper of a strategy."""
        return self.module

    @property
    def optimizer(self) -> Any:
        """The first optimizer."""
        return self.trainer.optimizers[0]

    def keep(self, batch: Any) -> None:
        """Keep a batch. The first ones stay, unless the newest are wanted."""
        if self._newest or len(self.batches) < self._max_batches:
            # As a tuple: a batch may be a bare tensor, of which a list would be one batch.
            self.batches = [*self.batches, (copy_of_inputs(batch),)][-self._max_batches :]

    def __call__(self, model: Any, batch: tuple[Any]) -> Any:
        """The loss of one kept batch, as a scalar tensor with its graph. Call it in `isolated`."""
        # The module may change what it is given.
        (own,) = copy_of_inputs(batch)
        if self._loss_fn is not None:
            with self.trainer.precision_plugin.train_step_context():
                return self._loss_fn(model, own)
        names = inspect.signature(model.training_step).parameters
        arguments = (own, 0)[: max(1, min(2, len(names)))]
        with self.trainer.precision_plugin.train_step_context():
            result = model.training_step(*arguments)
        loss = result.get("loss") if isinstance(result, Mapping) else result
        if loss is None:
            raise ValueError(f"training_step of {type(model).__name__} returned no loss")
        return loss

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Within the block, calls of the loss leave no trace in the module and use no collective.

        Weights, buffers and random state are not restored here: `model_state.preserved` does that.
        """
        package = type(self.trainer).__module__.partition(".trainer")[0]
        silent = import_module(f"{package}.loggers.logger").DummyLogger()
        with ExitStack() as stack:
            stack.enter_context(plain_state_preserved([self.module]))
            stack.enter_context(learning_rates_set(self.optimizer, self.learning_rates))
            for name in _SILENCED:
                stack.enter_context(attribute_set(self.module, name, ignore))
            stack.enter_context(attribute_set(self.module, "all_gather", first_argument))
            loggers = self.trainer.loggers
            stack.callback(setattr, self.trainer, "loggers", loggers)
            self.trainer.loggers = [silent] if loggers else []
            for part in self.module.modules():
                # A metric of torchmetrics would wait for other ranks.
                if getattr(part, "dist_sync_on_step", False):
                    part.dist_sync_on_step = False
            yield
