"""TensorBoard: `add_scalar` and `add_scalars` of PyTorch's SummaryWriter."""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.patcher import Tap
from sentinel.client.capture.tracker import Tracker

FRAMEWORK = "torch.utils.tensorboard.writer"


def attach(tap: Tap) -> None:
    """Put the taps in."""
    watch_writer(tap, sys.modules[FRAMEWORK].SummaryWriter)


def watch_writer(tap: Tap, writer: Any) -> None:
    """Hear the scalars of a class of writers."""
    tracker = Tracker(tap)

    def scalar(
        _: Any, tag: Any, scalar_value: Any, global_step: Any = None, *__: Any, **___: Any
    ) -> None:
        tracker.hear({tag: scalar_value}, global_step)

    def scalars(
        _: Any, main_tag: Any, tag_scalar_dict: Any, global_step: Any = None, *__: Any, **___: Any
    ) -> None:
        tracker.hear({main_tag: tag_scalar_dict}, global_step)

    tap.watch(writer, "add_scalar", before=scalar)
    tap.watch(writer, "add_scalars", before=scalars)
