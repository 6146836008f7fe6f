"""Gradients not cleared: each update adds its gradient to those of all updates before it.

Formula
    cleared  = before a backward pass the gradient of a parameter is None, another tensor than at
               the last update, or was written outside a backward pass
    Finding  = the gradient was not cleared before any pass of 3 updates in a row

Units
    There are no settings. Updates: steps of the optimizer.

Source
    Stack Overflow question 60335387: `zero_grad` is missing, the gradient is the sum of all so far,
    and the loss still falls for a while. PyTorch counts the writes into a tensor.

Defaults
    3 updates in a row: the passes of gradient accumulation belong to one update, and are no
    finding. The gradient is cleared by the optimizer, by the model, by hand or by a framework.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck


class GradientsNotCleared(ReportedCheck):
    """Evaluates the check `gradients`."""

    check = "gradients"
    unreported = (
        "The check needs 4 updates whose gradients are neither sharded nor made in inference mode."
    )
    signal = "grad_norm"
    remedy = (
        "Call `optimizer.zero_grad()` once for each update, before its first backward pass. Start "
        "the run again: what it learned is from wrong gradients."
    )
    problems: ClassVar[Mapping[str, Problem]] = {
        "not_cleared": Problem(
            "Gradients are not cleared: each of the last {updates:.0f} updates was computed with "
            "the gradients of the updates before it.",
            remedy,
        )
    }
