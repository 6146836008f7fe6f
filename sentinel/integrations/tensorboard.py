"""TensorBoard: patches `add_scalar` and `add_scalars` of PyTorch's SummaryWriter."""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.tracker import TrackerCapture

FRAMEWORK = "torch.utils.tensorboard.writer"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    patch_writer(patcher, sys.modules[FRAMEWORK].SummaryWriter)


def patch_writer(patcher: Patcher, writer: Any) -> None:
    """Capture the scalars that writers of this class log."""
    tracker = TrackerCapture(patcher)

    def on_add_scalar(
        _: Any, tag: Any, scalar_value: Any, global_step: Any = None, *__: Any, **___: Any
    ) -> None:
        tracker.log({tag: scalar_value}, global_step)

    def on_add_scalars(
        _: Any, main_tag: Any, tag_scalar_dict: Any, global_step: Any = None, *__: Any, **___: Any
    ) -> None:
        tracker.log({main_tag: tag_scalar_dict}, global_step)

    patcher.wrap(writer, "add_scalar", before=on_add_scalar)
    patcher.wrap(writer, "add_scalars", before=on_add_scalars)
