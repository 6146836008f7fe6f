"""tensorboardX: `add_scalar` and `add_scalars` of its SummaryWriter."""

from __future__ import annotations

import sys

from sentinel.client.capture.patcher import Tap
from sentinel.integrations.tensorboard import watch_writer

FRAMEWORK = "tensorboardX.writer"


def attach(tap: Tap) -> None:
    """Put the taps in."""
    watch_writer(tap, sys.modules[FRAMEWORK].SummaryWriter)
