"""TensorBoard: patches `add_scalar` and `add_scalars` of PyTorch's SummaryWriter."""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.patcher import Patcher
from sentinel.client.capture.tracker import TrackerCapture
from sentinel.client.capture.tracker_run import TrackerRunReporter, absolute_path

FRAMEWORK = "torch.utils.tensorboard.writer"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    patch_writer(patcher, sys.modules[FRAMEWORK].SummaryWriter)


def patch_writer(patcher: Patcher, writer: Any) -> None:
    """Capture the scalars that writers of this class log."""
    tracker = TrackerCapture(patcher)
    runs = TrackerRunReporter(patcher)

    def report(written: Any) -> None:
        runs.report(id(written), lambda: {"tensorboard_dir": absolute_path(_directory(written))})

    def on_add_scalar(
        own: Any, tag: Any, scalar_value: Any, global_step: Any = None, *__: Any, **___: Any
    ) -> None:
        tracker.log({tag: scalar_value}, global_step)
        report(own)

    def on_add_scalars(
        own: Any, main_tag: Any, tag_scalar_dict: Any, global_step: Any = None, *__: Any, **___: Any
    ) -> None:
        tracker.log({main_tag: tag_scalar_dict}, global_step)
        report(own)

    patcher.wrap(writer, "add_scalar", before=on_add_scalar)
    patcher.wrap(writer, "add_scalars", before=on_add_scalars)


def _directory(writer: Any) -> str:
    """The directory of the writer, which tensorboardX names in another way."""
    return str(getattr(writer, "log_dir", None) or writer.logdir)
