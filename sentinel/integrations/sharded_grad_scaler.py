"""GradScaler of FSDP: it has a `scale` of its own; all else is the plain one's."""

from __future__ import annotations

import sys

from sentinel.client.capture.patcher import Patcher
from sentinel.integrations.grad_scaler import wrap_scale

FRAMEWORK = "torch.distributed.fsdp.sharded_grad_scaler"


def attach(patcher: Patcher) -> None:
    """Put the tap in."""
    scaler = sys.modules[FRAMEWORK].ShardedGradScaler
    patcher.replace(scaler, "scale", lambda original: wrap_scale(patcher, original))
