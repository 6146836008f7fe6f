"""Steps skipped: a GradScaler skips more steps than it needs to find its scale.

Formula
    Finding  = 4 more updates are skipped in a row than bring the scale from its first value to 1;
               or over 25 % of the steps of 100 updates are skipped, and over twice the share at
               which the scale grows
    critical = the former

Units
    There are no settings. Steps: those of the scaler, skipped or not; an update is one of each
    optimizer.

Source
    The notes of PyTorch on automatic mixed precision: a step whose gradient is not finite is
    skipped, and the scale is halved. At a scale below 1 an overflow is not one of the scale.

Defaults
    From 65536, the usual first scale, 16 skipped steps lead to 1. A scale that grows every 2000
    steps costs one step in 2000. Steps of fused optimizers are skipped on the device, and not
    counted.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck
from sentinel.model.finding import Severity


class StepsSkipped(ReportedCheck):
    """Evaluates the check `scaler_steps`."""

    check = "scaler_steps"
    unreported = "The check needs a GradScaler."
    signal = "skipped_steps"
    remedy = (
        "Look for the first result that is not finite, with `torch.autograd.detect_anomaly()`: a "
        "division by 0, a logarithm or root of 0, a mask of minus infinity in float16. Use "
        "{bfloat16 precision}, which needs no scaler."
    )
    problems: ClassVar[Mapping[str, Problem]] = {
        "all_skipped": Problem(
            "The gradient scaler skips every step, {skipped:.0f} in a row: gradients are not "
            "finite at any scale.",
            remedy,
            Severity.CRITICAL,
        ),
        "often_skipped": Problem(
            "The gradient scaler skips {share:.0%} of the steps: their gradients are not finite, "
            "and their batches are lost.",
            remedy,
        ),
    }
