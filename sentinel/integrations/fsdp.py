"""FSDP1, `FullyShardedDataParallel`: parameters flattened and split, which do not tell it.

Taps: `__init__`, for how the parameters of each wrapped module lie over the ranks; and the norm
that the collective of its `clip_grad_norm_` found. `sharded_grad_scaler.py` taps its scaler.
FSDP2 needs none: its gradients tell it, and the taps of plain PyTorch see the rest.
"""

from __future__ import annotations

import sys
from typing import Any

from sentinel.client.capture.grad_sharding import Share
from sentinel.client.capture.loop import Loop
from sentinel.client.capture.patcher import Tap

FRAMEWORK = "torch.distributed.fsdp.fully_sharded_data_parallel"


def attach(tap: Tap) -> None:
    """Put the taps in."""
    from torch.utils.weak import WeakIdKeyDictionary  # noqa: PLC0415 - only ever inside a trainer

    owner, parts = sys.modules[FRAMEWORK].FullyShardedDataParallel, Parts(tap.loop)
    tap.loop.norm.flattened = WeakIdKeyDictionary()
    tap.watch(owner, "__init__", after=parts.made)
    tap.watch(owner, "clip_grad_norm_", after=parts.clipped)


class Parts:
    """What is known of parameters in parts."""

    def __init__(self, loop: Loop) -> None:
        self._loop = loop

    def made(self, _: None, module: Any, *__: Any, **___: Any) -> None:
        """A module was wrapped: its parameters are now parts of one."""
        handle = vars(module).get("_handle")
        if handle is None:
            return
        within, between = handle.process_group, vars(module).get("_inter_node_pg")
        copies = 1 if between is None else between.size()
        ranks = within.size() * copies
        share = Share(copies if handle.uses_sharded_strategy else ranks, ranks)
        flat = handle.flat_param
        for parameter in (flat, *(flat._params or ())):  # noqa: SLF001 - told nowhere else
            self._loop.norm.flattened[parameter] = share

    def clipped(self, norm: Any, module: Any, *given: Any, **named: Any) -> None:
        """The gradients of all ranks were clipped, by this norm of the whole."""
        norm_type = given[1] if len(given) > 1 else named.get("norm_type", 2.0)
        if float(norm_type) == 2.0:
            grads = [p.grad for p in module.parameters() if p.grad is not None]
            self._loop.norm.clipped(grads, norm)
