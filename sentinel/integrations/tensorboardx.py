"""tensorboardX: patches `add_scalar` and `add_scalars` of its SummaryWriter."""

from __future__ import annotations

import sys

from sentinel.client.capture.patcher import Patcher
from sentinel.integrations.tensorboard import patch_writer

FRAMEWORK = "tensorboardX.writer"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    patch_writer(patcher, sys.modules[FRAMEWORK].SummaryWriter)
