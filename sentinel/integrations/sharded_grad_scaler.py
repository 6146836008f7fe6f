"""FSDP's GradScaler, which overrides `scale`; the rest is inherited from the plain one."""

from __future__ import annotations

import sys

from sentinel.client.capture.patcher import Patcher
from sentinel.integrations.grad_scaler import wrap_scale

FRAMEWORK = "torch.distributed.fsdp.sharded_grad_scaler"


def attach(patcher: Patcher) -> None:
    """Install the patch."""
    scaler = sys.modules[FRAMEWORK].ShardedGradScaler
    patcher.replace(scaler, "scale", lambda original: wrap_scale(patcher, original))
