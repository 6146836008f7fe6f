"""Autocast not in force: mixed precision is asked for, and the model computes in float32.

Formula
    asked    = a GradScaler scales the loss, Accelerate is to use fp16 or bf16, autocast is active
               when a backward pass begins, or it is used for other devices than that of the loss
    Finding  = in the graphs of 3 such passes in a row no result has 16 bits, and a matrix product
               has 32

Units
    There are no settings. Looked at: the first passes of the training that ask for it.

Source
    Lightning-AI/lightning-thunder issue 725: autocast is not applied to some functions. The notes
    of PyTorch on automatic mixed precision: autocast is to wrap the forward pass and the loss.
    huggingface/lerobot pull request 4537: autocast for a device that computes nothing.

Defaults
    One result in 16 bits is sufficient: parts of a model in float32 are on purpose, and so is an
    autocast around a part that is not trained. Graphs with functions that hide a part of it, such
    as compiled models, reentrant checkpointing and FSDP, are left out.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import ClassVar

from sentinel.detectors._training_check import Problem, ReportedCheck


class AutocastNotInForce(ReportedCheck):
    """Evaluates the check `precision`."""

    check = "precision"
    unreported = "The check needs 3 backward passes of a training with autocast or a GradScaler."
    signal = "loss"
    remedy = (
        "Compute the forward pass and the loss inside `torch.autocast(device_type, dtype)`, for "
        "the device that the model is on; the backward pass needs none. With Accelerate, call the "
        "model that `prepare` returns."
    )
    problems: ClassVar[Mapping[str, Problem]] = {
        "autocast_not_in_force": Problem(
            "Mixed precision is not in force: {reason}, but the forward pass computes in float32 "
            "only.",
            remedy,
        )
    }
