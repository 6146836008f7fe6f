"""FSDP1, `FullyShardedDataParallel`: parameters flattened and split, which do not tell it.

Taps: `__init__`, for how the parameters of each wrapped module lie over the ranks; and the norm
that the collective of its `clip_grad_norm_` found. `sharded_grad_scaler.py` taps its scaler.
FSDP2 needs none: its gradients tell it, and the taps of plain PyTorch see the rest.
"""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.grad_sharding import GradientShare
from sentinel.client.capture.loop import TrainingLoop
from sentinel.client.capture.patcher import Patcher

FRAMEWORK = "torch.distributed.fsdp.fully_sharded_data_parallel"


def attach(patcher: Patcher) -> None:
    """Put the taps in."""
    from torch.utils.weak import WeakIdKeyDictionary  # noqa: PLC0415 - only ever inside a trainer

    owner, parts = sys.modules[FRAMEWORK].FullyShardedDataParallel, FsdpObserver(patcher.loop)
    patcher.loop.grad_norm.flattened_shares = WeakIdKeyDictionary()
    patcher.wrap(owner, "__init__", after=parts.on_init)
    patcher.wrap(owner, "clip_grad_norm_", after=parts.on_clip)


class FsdpObserver:
    """What is known of parameters in parts."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop

    def on_init(self, _: None, module: Any, *__: Any, **___: Any) -> None:
        """A module was wrapped: its parameters are now parts of one."""
        handle = vars(module).get("_handle")
        if handle is None:
            return
        within, between = handle.process_group, vars(module).get("_inter_node_pg")
        copies = 1 if between is None else between.size()
        ranks = within.size() * copies
        share = GradientShare(copies if handle.uses_sharded_strategy else ranks, ranks)
        flat = handle.flat_param
        for parameter in (flat, *(flat._params or ())):  # noqa: SLF001 - told nowhere else
            self._loop.grad_norm.flattened_shares[parameter] = share

    def on_clip(self, norm: Any, module: Any, *given: Any, **named: Any) -> None:
        """The gradients of all ranks were clipped, by this norm of the whole."""
        norm_type = given[1] if len(given) > 1 else named.get("norm_type", 2.0)
        if float(norm_type) == 2.0:
            grads = [p.grad for p in module.parameters() if p.grad is not None]
            self._loop.grad_norm.add_clip(grads, norm)
