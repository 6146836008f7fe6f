"""Weights not updated: steps of the optimizer do not change weights that have a gradient.

Formula
    moved    = whether an element with a gradient differs before and after a step; of at most 256
               elements of a weight, at most 512 weights, at some steps whose learning rate is not 0
    Finding  = no element of a weight, or of any, moved in 3 measurements; or
               3 measured steps in a row wrote into no weight; or
               the optimizer has no parameter with a gradient in 3 steps in a row; or
               the rate is 0 in all of the 16 steps after the first; or
               in 3 steps in a row all gradients are 0, and were not after the backward
               pass; or
               no optimizer takes a step, and 20 gradients are computed and cleared; or
               a parameter between others of the optimizer, in the order of the model or, if the
               model does not own it, of the computation, gets a gradient, and no optimizer that
               took a step holds it; or so does one that lacks in a checkpoint which gave the model
               over half of its weights, as a new head; or
               no parameter whose name is that of an adapter has a gradient, or no parameter of a
               block under reentrant checkpointing whose inputs need none; or
               the optimizer trains norms alone, all other weights are frozen, and no weights were
               loaded; or
               since the end of a warm-up, in at least 3 measurements, less than 0.3 % of the
               elements of matrices in 16 bits or less moved; or
               no element of a vector in 16 bits or less moved, while all matrices have more
    critical = no weight is updated

Units
    There are no settings. Measured steps: the 2nd, 4th, 8th and 16th after the first, and later at
    least 100 steps apart.

Source
    huggingface/accelerate issue 2665: an optimizer that was made before the model was wrapped holds
    other tensors. pytorch/pytorch issue 115607: a compiled optimizer stops to update. The trainings
    of TrainCheck (Jiang et al. 2025, OSDI). bfloat16 has 8 bits of precision: an update smaller
    than 1/512 of a weight is lost.

Defaults
    3 measurements: one step may have no gradient for some weights. A gradient below 1e-4 of the
    mean size is none: that of a bias before a normalization consists of rounding errors. The rate
    1e-6, common in reinforcement learning, moves 2 % of bfloat16 weights of a standard deviation of
    0.02, and 1e-7 moves 0.2 %. Parameters before or behind all those of the optimizer, such as a
    backbone whose head alone is trained, are left out on purpose.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck
from sentinel.model.finding import Severity

_INITIAL = "Stop the run: its checkpoints contain the initial weights."


class WeightsNotUpdated(ReportedCheck):
    """Evaluates the check `weights`."""

    check = "weights"
    unreported = "The check needs 8 steps of an optimizer, outside the backward pass."
    signal = "loss"
    remedy = (
        f"{_INITIAL} Create the optimizer after the model is copied, wrapped or moved, from "
        "the parameters of the model whose loss is minimized. Check that nothing writes the "
        "weights back after a step."
    )
    problems: ClassVar[Mapping[str, Problem]] = {
        "unchanged": Problem(
            "No step changes any weight, although the gradients are not 0.",
            f"{_INITIAL} Check that `optimizer.step()` is PyTorch's own and not compiled or "
            "replaced, and that nothing writes the weights back after it.",
            Severity.CRITICAL,
        ),
        "other_tensors": Problem(
            "The optimizer does not hold the parameters that get gradients, those of {modules}; "
            "its own have none.",
            f"{_INITIAL} Create the optimizer after the model is copied, wrapped or moved, from "
            "`model.parameters()` of the model whose loss is minimized.",
            Severity.CRITICAL,
        ),
        "no_gradient": Problem(
            "No parameter of the optimizer has a gradient when it takes a step.",
            f"{_INITIAL} Call `zero_grad()` before `backward()`, and `backward()` before `step()`. "
            "Check that the loss is not computed under `torch.no_grad()` or from detached tensors.",
            Severity.CRITICAL,
        ),
        "zeroed": Problem(
            "The gradients are set to 0 between the backward pass and the step, so that no step "
            "learns from them.",
            f"{_INITIAL} Look for what changes gradients before `optimizer.step()`: "
            "`clip_grad_norm_` with a limit of 0, which does not switch clipping off but sets all "
            "gradients to 0; a `zero_grad()`; or a factor or a mask of 0.",
            Severity.CRITICAL,
        ),
        "no_rate": Problem(
            "The learning rate is 0 in each of the first {steps:.0f} steps, so that no step "
            "changes any weight.",
            "Look at the schedule: a warm-up whose factor is a division of whole numbers, or that "
            "counts epochs, stays at 0. Check that {learning rate} is set.",
            Severity.CRITICAL,
        ),
        "no_step": Problem(
            "No optimizer takes a step: gradients were computed and cleared {updates:.0f} times.",
            f"{_INITIAL} Call `optimizer.step()` after `backward()`, before the gradients are "
            "cleared, and check that it is PyTorch's own and not replaced.",
            Severity.CRITICAL,
        ),
        "part_unchanged": Problem(
            "Steps do not change {unchanged:.0f} of {weights:.0f} weights, although their "
            "gradients are not 0: those of {modules}.",
            "Look for code that writes these weights back after a step, and for an optimizer that "
            "is compiled or holds copies of them.",
        ),
        "not_in_optimizer": Problem(
            "The parameters of {modules} get gradients, but no optimizer holds them.",
            "Add these parameters to the optimizer, or set `requires_grad` to False if they are "
            "to stay as they are. Parameters added to a model later need "
            "`optimizer.add_param_group`. Layers are to be in `nn.ModuleList` instead of a list, "
            "and made in `__init__` instead of `forward`.",
        ),
        "recomputed": Problem(
            "The weights of {modules} are never trained: they are in a block under reentrant "
            "checkpointing whose input needs no gradient, so that none reaches the block.",
            "Checkpoint with `use_reentrant=False`, with Transformers by "
            "`gradient_checkpointing_kwargs={{'use_reentrant': False}}`; or call "
            "`model.enable_input_require_grads()` before the training.",
        ),
        "adapter_not_used": Problem(
            "The adapters in {modules} are not used: none of them gets a gradient, while other "
            "parts of the model are trained.",
            "Activate the adapter that is to be trained, with PEFT by `model.set_adapter(name)` "
            "and without `disable_adapter()` around the training, with Adapters by "
            "`model.train_adapter(name)`. Check that `forward` calls it.",
        ),
        "only_norms": Problem(
            "Only the norms are trained, {modules}: all other weights are frozen at their random "
            "values, as no checkpoint was loaded.",
            "Look for the code that sets `requires_grad` to False: its condition on names or kinds "
            "of modules may be the wrong way round. To train the norms of a pretrained model, load "
            "its weights first.",
        ),
        "norms_too_coarse": Problem(
            "The vectors of {modules} are in {dtype} and never change, while the matrices of the "
            "model are in higher precision: at a learning rate of {learning_rate:.3g} each update "
            "is smaller than the spacing of these numbers.",
            "Keep these vectors, such as the scale of a norm, in float32, and compute in low "
            "precision with autocast.",
        ),
        "too_small": Problem(
            "A step changes {moved_share:.2%} of the {dtype} weights: at a learning rate of "
            "{learning_rate:.3g} nearly all updates are smaller than the spacing of these numbers.",
            "Keep the weights that the optimizer updates in float32, and compute in low precision "
            "with autocast. Otherwise raise {learning rate}, or use an optimizer with stochastic "
            "rounding.",
        ),
    }
