"""GradScaler of FSDP: it has a `scale` of its own; all else is the plain one's."""

from __future__ import annotations

import sys

from sentinel.client.capture.patcher import Tap
from sentinel.integrations.grad_scaler import around_scale

FRAMEWORK = "torch.distributed.fsdp.sharded_grad_scaler"


def attach(tap: Tap) -> None:
    """Put the tap in."""
    scaler = sys.modules[FRAMEWORK].ShardedGradScaler
    tap.replace(scaler, "scale", lambda original: around_scale(tap, original))
