"""The loss of a Transformers or TRL trainer on a kept batch, computed without a trace.

`Trainer.compute_loss` counts tokens, appends metrics and gathers them from all ranks. Here it is
called on the inputs of an earlier call, and what it changes in the trainer is undone.

TRL's losses change in two ways, so that they are functions of the weights alone:

- DPO: the log-probabilities of the reference are computed once, at the weights of the reference.
- GRPO without stored log-probabilities of the old policy takes those of the current one, which
  makes its value the same everywhere. They are computed once, at the weights of the training, so
  that the value is the clipped surrogate of Schulman et al. 2017 around them.
"""

from __future__ import annotations

import functools
import sys
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from os import PathLike
from pathlib import Path
from types import FrameType
from typing import Any

import torch
from transformers import Trainer

from sentinel.insight.callbacks.loss_measurement import KeptLoss, LossFunction
from sentinel.insight.callbacks.plain_state import (
    attribute_set,
    copy_of_inputs,
    first_argument,
    ignore,
    learning_rates_set,
    plain_state_preserved,
)
from sentinel.insight.measure.model_state import preserved

_MAX_LOGITS = 1 << 26
"""Logits that are held at once for second derivatives."""
OLD_LOG_PROBABILITIES = "old_per_token_logps"
_REFERENCE_LOG_PROBABILITIES = ("ref_chosen_logps", "ref_rejected_logps")


class TrainerLoss(KeptLoss):
    """Keeps inputs of `compute_loss`, and computes the loss of them for any weights.

    `batches` is the number of micro-batches that are kept; their losses are averaged.
    """

    def __init__(
        self,
        trainer: Any,
        batches: int = 1,
        newest: bool | None = None,
        loss_fn: LossFunction | None = None,
    ) -> None:
        if newest is None:
            newest = hasattr(trainer, "_buffered_inputs")
        super().__init__(batches, newest, loss_fn, is_reporting=trainer.is_world_process_zero())
        self.trainer = trainer
        self._is_prepared = False
        self._keeping: Any = None

    @property
    def model(self) -> Any:
        """The model as the trainer holds it: unwrapped, unless it is sharded by FSDP."""
        return self.trainer.model

    @property
    def optimizer(self) -> Any:
        """The optimizer without Accelerate's wrapper."""
        return getattr(self.trainer.optimizer, "optimizer", self.trainer.optimizer)

    def keep(self) -> None:
        """Keep the inputs of the next calls of `compute_loss`, in place of earlier ones.

        Inputs of an earlier step stay, unless the newest are wanted.
        """
        is_full = len(self.batches) >= self._max_batches
        if self._keeping is not None or (is_full and not self._newest):
            return
        trainer, kept = self.trainer, [] if self._newest else self.batches
        original = trainer.compute_loss

        @functools.wraps(original)
        def keeping(model: Any, inputs: Any, *args: Any, **kwargs: Any) -> Any:
            if len(kept) < self._max_batches:
                kept.append(copy_of_inputs(inputs))
                self.batches, self._is_prepared = kept, False
            return original(model, inputs, *args, **kwargs)

        self._keeping = attribute_set(trainer, "compute_loss", keeping)
        self._keeping.__enter__()

    def end_keeping(self) -> None:
        """Give `compute_loss` back to the trainer."""
        if self._keeping is not None:
            self._keeping.__exit__(None, None, None)
            self._keeping = None

    def __call__(self, model: Any, batch: Mapping[str, Any]) -> Any:
        """The loss of one kept batch, as a scalar tensor with its graph. Call it in `isolated`."""
        trainer = self.trainer
        inputs = dict(batch)
        if self._loss_fn is not None:
            with trainer.compute_loss_context_manager():
                return self._loss_fn(model, inputs)
        if "num_items_in_batch" in inputs and "completion_mask" in inputs:
            inputs["num_items_in_batch"] = self._items_of(inputs, model)
        with trainer.compute_loss_context_manager():
            loss = trainer.compute_loss(model, inputs)
        return loss.mean() if loss.dim() else loss

    def _items_of(self, inputs: Mapping[str, Any], model: Any) -> Any:
        """For losses per token of GRPO: the count that makes the divisor that of this batch.

        The trainer counts the tokens of all batches that were generated together, and divides by
        that, times the accumulation steps (here 1), over the ranks and the steps of a generation.
        """
        trainer, mask = self.trainer, inputs["completion_mask"]
        if "tool_mask" in inputs:
            mask = mask * inputs["tool_mask"]
        steps = trainer.args.steps_per_generation if model.training else 1
        return mask.sum() * trainer.accelerator.num_processes * steps

    @contextmanager
    def isolated(self) -> Iterator[None]:
        """Within the block, calls of the loss leave no trace in the trainer and use no collective.

        Weights, buffers and random state are not restored here: `model_state.preserved` does that.
        """
        trainer = self.trainer
        with ExitStack() as stack:
            stack.enter_context(plain_state_preserved([trainer]))
            stack.enter_context(attribute_set(trainer.args, "report_to", []))
            stack.enter_context(attribute_set(trainer, "log", ignore))
            stack.enter_context(_local_collectives(trainer.accelerator))
            stack.enter_context(_differentiable_twice())
            stack.enter_context(learning_rates_set(self.optimizer, self.learning_rates))
            trainer.current_gradient_accumulation_steps = 1
            if not self._is_prepared and self._loss_fn is None:
                self._prepare()
            if _REFERENCE_LOG_PROBABILITIES[0] in self.batches[0]:
                trainer.precompute_ref_logps = True
            yield

    def _prepare(self) -> None:
        trainer = self.trainer
        with preserved(trainer.model), torch.no_grad(), trainer.compute_loss_context_manager():
            trainer.model.eval()
            for batch in self.batches:
                if _needs_reference(trainer, batch):
                    reference = trainer.ref_model or trainer.model
                    values = trainer.compute_ref_log_probs(reference, batch)
                    batch.update(zip(_REFERENCE_LOG_PROBABILITIES, values, strict=True))
                elif _needs_old_policy(trainer, batch):
                    batch[OLD_LOG_PROBABILITIES] = _policy_log_probabilities(trainer, batch)
        self._is_prepared = True


def trainer_of(callback: Any) -> Any:
    """The trainer that is handling an event of the callback.

    Raises RuntimeError if no trainer of Transformers calls.
    """
    # Transformers passes its callbacks everything but the trainer.
    for frame in _callers():
        owner = frame.f_locals.get("self")
        if isinstance(owner, Trainer) and callback in owner.callback_handler.callbacks:
            return owner
    raise RuntimeError("no transformers.Trainer called this callback: pass it to one by callbacks=")


def resumed_checkpoint(trainer: Any) -> Path | None:
    """The checkpoint that the training continues, which is starting now; None for a new training.

    `train` has resolved `resume_from_checkpoint=True` to a folder.
    """
    for frame in _callers():
        if frame.f_locals.get("self") is trainer:
            folder = frame.f_locals.get("resume_from_checkpoint")
            if isinstance(folder, str | PathLike):
                return Path(folder)
    return None


def _callers() -> Iterator[FrameType]:
    """The frames that led here, the innermost first."""
    frame: FrameType | None = sys._getframe(1)  # noqa: SLF001 - it has no public name
    while frame is not None:
        yield frame
        frame = frame.f_back


def _needs_reference(trainer: Any, batch: Mapping[str, Any]) -> bool:
    # Other trainers with such a function, as KTO, have other batches.
    is_dpo = "dpo" in getattr(trainer, "_tag_names", ()) and "completion_mask" in batch
    has_function = hasattr(trainer, "compute_ref_log_probs")
    return is_dpo and has_function and getattr(trainer, "precompute_ref_logps", None) is False


def _needs_old_policy(trainer: Any, batch: Mapping[str, Any]) -> bool:
    if not hasattr(trainer, "_get_per_token_logps_and_entropies") or "advantages" not in batch:
        return False
    return batch.get(OLD_LOG_PROBABILITIES) is None and "old_logps" not in batch


def _policy_log_probabilities(trainer: Any, batch: Mapping[str, Any]) -> Any:
    """Log-probability of each token, from the call that the trainer's loss makes itself."""
    name, seen = "_get_per_token_logps_and_entropies", []
    original = getattr(trainer, name)

    def keeping(*args: Any, **kwargs: Any) -> Any:
        result = original(*args, **kwargs)
        seen.append(result[0])
        return result

    with attribute_set(trainer, name, keeping):
        trainer.compute_loss(trainer.model, dict(batch))
    return seen[0].detach()


@contextmanager
def _local_collectives(accelerator: Any) -> Iterator[None]:
    """Let a rank keep its own metrics: no other rank takes part in this computation."""
    with ExitStack() as stack:
        for name in ("gather", "gather_for_metrics", "reduce", "pad_across_processes"):
            stack.enter_context(attribute_set(accelerator, name, first_argument))
        yield


@contextmanager
def _differentiable_twice() -> Iterator[None]:
    """Let the Hessian of TRL's losses be computed: its fused head has a first derivative only."""
    utilities = sys.modules.get("trl.trainer.utils")
    fused = getattr(utilities, "_ChunkedLogProbFunction", None)
    if fused is None:
        yield
        return
    with attribute_set(utilities, "_ChunkedLogProbFunction", _LogProbabilities(fused)):
        yield


class _LogProbabilities:
    """Takes the place of TRL's fused function: the same values by plain operations.

    The fused one stays where no gradient is needed, and for logits that are too large.
    """

    def __init__(self, fused: Any) -> None:
        self._fused = fused

    def apply(self, *arguments: Any) -> tuple[Any, ...]:
        """Per token: log-probability, entropy, log of the sum of squares, mean logit, is best."""
        hidden, weight, bias, targets, temperature, _, softcap, scale, outputs = arguments
        too_large = hidden.shape[0] * weight.shape[0] > _MAX_LOGITS
        if too_large or not torch.is_grad_enabled():
            result: tuple[Any, ...] = self._fused.apply(*arguments)
            return result
        logits = torch.nn.functional.linear(hidden, weight, bias)
        logits = logits.to(torch.promote_types(logits.dtype, torch.float32)) * scale
        if softcap is not None:
            logits = softcap * torch.tanh(logits / softcap)
        logits = logits / temperature
        logs = logits.log_softmax(-1)
        values = {
            "entropy": -(logs.exp() * logs).sum(-1),
            "log_sum_sq_probs": (2 * logs).logsumexp(-1).detach(),
            "mean_logits": logits.mean(-1).detach(),
            "is_top1": logits.argmax(-1) == targets,
        }
        chosen = logs.gather(-1, targets.unsqueeze(-1)).squeeze(-1)
        return chosen, *(values[name] if name in outputs else None for name in values)
