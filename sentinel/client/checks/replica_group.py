"""The ranks that hold replicas of one model."""

from __future__ import annotations

import sys
from typing import Any


def replica_group(model: Any) -> dict[str, float] | None:
    """First rank and number of the ranks with replicas of a DistributedDataParallel model.

    None if it is none, or on one rank.
    """
    parallel = sys.modules.get("torch.nn.parallel.distributed")
    if parallel is None or type(model) is not parallel.DistributedDataParallel:
        return None
    ranks = sys.modules["torch.distributed"].get_process_group_ranks(model.process_group)
    # Replicas that are averaged at some steps only.
    hooks = {getattr(hook, "__name__", "") for hook, _ in getattr(model, "_comm_hooks", ())}
    if len(ranks) < 2 or "post_localSGD_hook" in hooks:
        return None
    return {"first_rank": float(min(ranks)), "ranks": float(len(ranks))}
