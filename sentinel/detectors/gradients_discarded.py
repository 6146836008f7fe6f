"""Gradients discarded: the backward passes of an update clear each other's gradients.

Formula
    discarded = before each backward pass of an update but the first the gradient of the pass before
                is cleared, and no weight has changed since
    Finding   = the passes are discarded in 15 updates in a row, each step is taken with the
                gradient of the last pass, scaled at most, and in the last of these updates all
                passes have the same operations, none makes a gradient of its inputs or uses the
                graph of another one, and either the loss is divided by the number of passes, each
                batch is of the same data loader, or no batch is and all have the same shapes

Units
    There are no settings. Updates: steps of the optimizer with more than one backward pass.

Source
    bytetriper/RAE issue 67: `zero_grad` in each micro-batch of gradient accumulation. The update is
    that of one micro-batch, and the passes before it are computed for nothing.

Defaults
    15 updates: a loop leaves out a batch now and then. In continual learning the gradient of a
    memory is computed, compared and cleared; while it agrees with that of the batch, the step is
    taken with the latter alone, and only the source of the batches shows that. Sharpness-aware
    minimization changes the weights between the passes, an attack makes gradients of its inputs,
    and the parts of a loss are measured before they are added, in one graph or each in its own.
    Trainings with several optimizers are left out: the passes of a GAN make gradients for both
    models.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck


class GradientsDiscarded(ReportedCheck):
    """Evaluates the check `accumulation`."""

    check = "accumulation"
    unreported = (
        "The check needs 3 updates of several backward passes and one optimizer, whose gradients "
        "are not sharded."
    )
    signal = "grad_norm"
    remedy = (
        "Call `optimizer.zero_grad()` once for each update, after `optimizer.step()` or before the "
        "first backward pass, and not for each micro-batch."
    )
    problems: ClassVar[Mapping[str, Problem]] = {
        "discarded": Problem(
            "Gradients are discarded: each of {updates:.0f} updates has {passes:.0f} backward "
            "passes, and the gradients are cleared before each of them, so that only the last one "
            "counts.",
            remedy,
        )
    }
