"""Gradient norm: before clipping, from the trainer's own clipping where it clips, else our own.

Our own costs one pass over the gradients. It is taken so seldom that it stays within `BUDGET` of
the time of a step, though at least every `OFTEN`-th step while it costs less than `CHEAP`.
Under a GradScaler gradients may still be scaled, as fused optimizers want them: then the scale is
divided out. A rank that holds only a part of each gradient gives the norm of its part, under its
own name, since bringing the parts together would be a collective.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter
from typing import Any

from sentinel.hook.scalars import Refused, local

BUDGET = 0.01
"""Share of a step's time."""
OFTEN = 10
CHEAP = 1e-3
"""Seconds."""
SELDOM = 1000


@dataclass
class GradNorm:
    """The norm of one optimizer's gradients, step by step."""

    clips: deque[tuple[Any, Any]] = field(default_factory=lambda: deque(maxlen=16))
    """First gradient and norm of every clipping since the last step."""
    costs: deque[float] = field(default_factory=lambda: deque(maxlen=3))
    """Seconds that the last measurements took; the least counts, since the first ones warm up."""
    unmeasured: int = 0
    """Steps since the last one that was worth a measurement."""

    def clipped(self, gradients: list[Any], norm: Any) -> None:
        """The trainer clips these gradients, whose L2 norm this is."""
        if gradients and not any(first is gradients[0] for first, _ in self.clips):
            self.clips.append((gradients[0], norm))

    def of_clips(self, optimizer: Any) -> Any:
        """Norm over what was clipped of that optimizer's gradients, or None."""
        clips = list(self.clips)
        self.clips.clear()
        if not clips:
            return None
        firsts = {id(first) for first, _ in clips}
        owned = {id(g) for g in gradients(optimizer) if id(g) in firsts}
        norms = [local(norm) for first, norm in clips if id(first) in owned]
        if len(norms) < 2:
            return norms[0] if norms else None
        return sum(norm.detach().double() ** 2 for norm in norms) ** 0.5

    def due(self, step_time: float) -> bool:
        """Whether this step's norm is worth its cost."""
        self.unmeasured += 1
        if self.unmeasured < self._stride(step_time):
            return False
        self.unmeasured = 0
        return True

    def _stride(self, step_time: float) -> int:
        if len(self.costs) < 2 or step_time <= 0:
            return 1
        cost = min(self.costs)
        return min(ceil(cost / (BUDGET * step_time)), OFTEN if cost < CHEAP else SELDOM)

    def measure(self, optimizer: Any) -> tuple[str, Any]:
        """Name and value of our own norm. Raises Refused where there is none to be had."""
        torch = sys.modules["torch"]
        began = perf_counter()
        parts, sharded = _parts(gradients(optimizer), torch)
        with torch.no_grad():
            norms = torch._foreach_norm(parts)  # noqa: SLF001 - what clip_grad_norm_ calls itself
            total = torch.linalg.vector_norm(torch.stack([norm.float() for norm in norms]))
            scale = getattr(optimizer, "grad_scale", None)
            if scale is not None:
                total = total / scale.to(total.device)
        self.costs.append(perf_counter() - began)
        return ("grad_norm_local" if sharded else "grad_norm"), total


def gradients(optimizer: Any) -> Iterable[Any]:
    """Every gradient there is of an optimizer's parameters."""
    return (p.grad for g in optimizer.param_groups for p in g["params"] if p.grad is not None)


def _parts(grads: Iterable[Any], torch: Any) -> tuple[list[Any], bool]:
    parts, sharded = [], False
    for grad in grads:
        if hasattr(grad, "placements"):
            sharded = sharded or not all(p.is_replicate() for p in grad.placements)
            parts.append(grad.to_local())
        else:
            parts.append(grad)
    if not parts or any(p.layout != torch.strided or p.device != parts[0].device for p in parts):
        raise Refused("type")
    return parts, sharded
