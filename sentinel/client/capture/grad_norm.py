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
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from math import ceil
from time import perf_counter
from typing import Any

from sentinel.client.capture.grad_sharding import (
    Share,
    brought_together,
    of_gradient,
    of_norm,
    part,
)
from sentinel.client.capture.scalars import Refused

BUDGET = 0.01
"""Share of a step's time."""
OFTEN = 10
CHEAP = 1e-3
"""Seconds."""
SELDOM = 1000
TOGETHER = (1, 2, 10, 20, 100, 200, SELDOM)
"""Strides where each rank has a part, each a multiple of those before, so that ranks which choose
differently still meet: parts of different steps could not be brought together."""


@dataclass
class GradNorm:
    """The norm of one optimizer's gradients, step by step."""

    clips: deque[tuple[Any, Any]] = field(default_factory=lambda: deque(maxlen=16))
    """First gradient, weakly, and norm of every clipping since the last step."""
    costs: deque[float] = field(default_factory=lambda: deque(maxlen=3))
    """Seconds that the last measurements took; the least counts, since the first ones warm up."""
    unmeasured: int = 0
    """Steps since the last one that was worth a measurement."""
    asked: int = 0
    """How often a measurement could have been made."""
    in_parts: bool = False
    """The last measurement was of this rank's part only."""
    flattened: Any = None
    """Shares of parameters that do not tell it themselves, where an integration knows of any."""

    def clipped(self, gradients: list[Any], norm: Any) -> None:
        """The trainer clips these gradients, whose L2 norm this is."""
        from torch.utils.weak import TensorWeakRef  # noqa: PLC0415 - only ever inside a trainer

        if gradients and not any(first() is gradients[0] for first, _ in self.clips):
            # Weakly: it may be an embedding's, and a step may never come.
            self.clips.append((TensorWeakRef(gradients[0]), norm))

    def of_clips(self, optimizer: Any) -> dict[str, Any]:
        """Name and norm of what was clipped of that optimizer's gradients; empty if nothing was.

        Raises Refused where a rank cannot tell its share of the norm.
        """
        clips = [(first(), norm) for first, norm in self.clips]
        self.clips.clear()
        if not clips:
            return {}
        firsts = {id(first) for first, _ in clips}
        owned = {id(p.grad) for p in learning(optimizer) if id(p.grad) in firsts}
        norms = [norm for first, norm in clips if id(first) in owned]
        return brought_together([(part(norm), of_norm(norm)) for norm in norms])

    def due(self, step_time: float) -> bool:
        """Whether this step's norm is worth its cost."""
        self.asked += 1
        self.unmeasured += 1
        stride = self._stride(step_time)
        if self.in_parts:
            together = next(each for each in TOGETHER if each >= stride)
            return self.asked % together == 0
        if self.unmeasured < stride:
            return False
        self.unmeasured = 0
        return True

    def _stride(self, step_time: float) -> int:
        if len(self.costs) < 2 or step_time <= 0:
            return 1
        cost = min(self.costs)
        return min(ceil(cost / (BUDGET * step_time)), OFTEN if cost < CHEAP else SELDOM)

    def measure(self, optimizer: Any) -> dict[str, Any]:
        """Name and value of our own norm; empty without gradients.

        Raises Refused where it could not be had by reading them alone.
        """
        torch = sys.modules["torch"]
        began = perf_counter()
        with torch.no_grad():
            parts, shares = self._parts(learning(optimizer), torch)
            if not parts:
                return self._nothing(optimizer)
            alike: dict[Share | None, list[Any]] = {}
            for norm, share in zip(_norms(parts, torch), shares, strict=True):
                alike.setdefault(share, []).append(norm)
            totals = [
                (torch.linalg.vector_norm(torch.stack(each)), share)
                for share, each in alike.items()
            ]
            found = brought_together(totals)
            scale = getattr(optimizer, "grad_scale", None)
            if scale is not None:
                found = {name: total / scale.to(total.device) for name, total in found.items()}
        self.costs.append(perf_counter() - began)
        self.in_parts = "grad_norm_local" in found
        return found

    def _nothing(self, optimizer: Any) -> dict[str, Any]:
        """Of parameters that were flattened and split, a rank may hold none that has a gradient."""
        everything = [p for group in optimizer.param_groups for p in group["params"]]
        split = self.flattened is not None and any(p in self.flattened for p in everything)
        return {"grad_norm_local": 0.0} if split else {}

    def _parts(self, parameters: Iterable[Any], torch: Any) -> tuple[list[Any], list[Share | None]]:
        parts: list[Any] = []
        shares: list[Share | None] = []
        for parameter in parameters:
            grad = part(parameter.grad)
            if grad.is_complex():
                grad = torch.view_as_real(grad.resolve_conj())
            if grad.layout != torch.strided or (parts and grad.device != parts[0].device):
                raise Refused("type")
            parts.append(grad)
            shares.append(of_gradient(parameter, self.flattened))
        return parts, shares


def _norms(parts: list[Any], torch: Any) -> list[Any]:
    """What clip_grad_norm_ computes, but never rounded to the precision of half gradients."""
    wide = torch.float64 if any(p.dtype == torch.float64 for p in parts) else torch.float32
    try:
        return list(torch._foreach_norm(parts, 2, dtype=wide))  # noqa: SLF001
    except TypeError:
        # Of PyTorch before 2.4.
        return [norm.to(wide) for norm in torch._foreach_norm(parts)]  # noqa: SLF001
    except RuntimeError:
        # A kind of number that has none, or no memory left: no reason to lose the loss as well.
        raise Refused("type") from None


def learning(optimizer: Any) -> Iterator[Any]:
    """Every parameter of an optimizer that has a gradient."""
    return (p for g in optimizer.param_groups for p in g["params"] if p.grad is not None)
