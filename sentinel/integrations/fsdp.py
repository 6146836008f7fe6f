"""FSDP1, `FullyShardedDataParallel`: flattened and sharded parameters that do not show it.

Patches `__init__`, for how the parameters of each wrapped module are split over the ranks, and
`clip_grad_norm_`, for the norm that its collective computed. `sharded_grad_scaler` patches the
scaler. FSDP2 needs no patches: its gradients are DTensors, and `torch_loop` captures the rest.
"""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.grad_sharding import GradientShare
from sentinel.client.capture.loop import TrainingLoop
from sentinel.client.capture.patcher import Patcher

FRAMEWORK = "torch.distributed.fsdp.fully_sharded_data_parallel"


def attach(patcher: Patcher) -> None:
    """Install the patches."""
    from torch.utils.weak import WeakIdKeyDictionary  # noqa: PLC0415 - torch is imported lazily

    owner, observer = sys.modules[FRAMEWORK].FullyShardedDataParallel, FsdpObserver(patcher.loop)
    patcher.loop.grad_norm.flattened_shares = WeakIdKeyDictionary()
    patcher.wrap(owner, "__init__", after=observer.on_init)
    patcher.wrap(
        owner,
        "clip_grad_norm_",
        before=lambda *_, **__: patcher.loop.before_clip(),
        after=observer.on_clip,
    )


class FsdpObserver:
    """Records how FSDP shards parameters, and the gradient norms that it computes."""

    def __init__(self, loop: TrainingLoop) -> None:
        self._loop = loop

    def on_init(self, _: None, module: Any, *__: Any, **___: Any) -> None:
        """Called when a module was wrapped: its parameters are now views of a flat parameter."""
        handle = vars(module).get("_handle")
        if handle is None:
            return
        within, between = handle.process_group, vars(module).get("_inter_node_pg")
        copies = 1 if between is None else between.size()
        ranks = within.size() * copies
        share = GradientShare(copies if handle.uses_sharded_strategy else ranks, ranks)
        flat = handle.flat_param
        for parameter in (flat, *(flat._params or ())):  # noqa: SLF001 - there is no public name
            self._loop.grad_norm.flattened_shares[parameter] = share

    def on_clip(self, norm: Any, module: Any, *args: Any, **kwargs: Any) -> None:
        """Called with the norm over all ranks, by which the gradients were clipped."""
        norm_type = args[1] if len(args) > 1 else kwargs.get("norm_type", 2.0)
        if float(norm_type) == 2.0:
            grads = [p.grad for p in module.parameters() if p.grad is not None]
            self._loop.grad_norm.add_clip(grads, norm)
