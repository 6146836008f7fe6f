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
    GradientShare,
    combine_norms,
    gradient_share,
    local_part,
    norm_share,
)
from sentinel.client.capture.scalars import RejectedValueError

MAX_STEP_TIME_FRACTION = 0.01
"""Share of a step's time."""
CHEAP_STRIDE_STEPS = 10
CHEAP_COST_SECONDS = 1e-3
"""Seconds."""
MAX_STRIDE_STEPS = 1000
SHARDED_STRIDES = (1, 2, 10, 20, 100, 200, MAX_STRIDE_STEPS)
"""Strides where each rank has a part, each a multiple of those before, so that ranks which choose
differently still meet: parts of different steps could not be brought together."""


@dataclass
class GradNorm:
    """The norm of one optimizer's gradients, step by step."""

    clips: deque[tuple[Any, Any]] = field(default_factory=lambda: deque(maxlen=16))
    """First gradient, weakly, and norm of every clipping since the last step."""
    costs_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=3))
    """Seconds that the last measurements took; the least counts, since the first ones warm up."""
    steps_since_measurement: int = 0
    """Steps since the last one that was worth a measurement."""
    due_checks: int = 0
    """How often a measurement could have been made."""
    is_sharded: bool = False
    """The last measurement was of this rank's part only."""
    flattened_shares: Any = None
    """Shares of parameters that do not tell it themselves, where an integration knows of any."""

    def add_clip(self, gradients: list[Any], norm: Any) -> None:
        """The trainer clips these gradients, whose L2 norm this is."""
        from torch.utils.weak import TensorWeakRef  # noqa: PLC0415 - only ever inside a trainer

        if gradients and not any(first() is gradients[0] for first, _ in self.clips):
            # Weakly: it may be an embedding's, and a step may never come.
            self.clips.append((TensorWeakRef(gradients[0]), norm))

    def pop_clipped_norm(self, optimizer: Any) -> dict[str, Any]:
        """Name and norm of what was clipped of that optimizer's gradients; empty if nothing was.

        Raises Refused where a rank cannot tell its share of the norm.
        """
        clips = [(first(), norm) for first, norm in self.clips]
        self.clips.clear()
        if not clips:
            return {}
        firsts = {id(first) for first, _ in clips}
        owned = {id(p.grad) for p in parameters_with_gradient(optimizer) if id(p.grad) in firsts}
        norms = [norm for first, norm in clips if id(first) in owned]
        return combine_norms([(local_part(norm), norm_share(norm)) for norm in norms])

    def is_due(self, step_time: float) -> bool:
        """Whether this step's norm is worth its cost."""
        self.due_checks += 1
        self.steps_since_measurement += 1
        stride = self._stride(step_time)
        if self.is_sharded:
            together = next(each for each in SHARDED_STRIDES if each >= stride)
            return self.due_checks % together == 0
        if self.steps_since_measurement < stride:
            return False
        self.steps_since_measurement = 0
        return True

    def _stride(self, step_time: float) -> int:
        if len(self.costs_seconds) < 2 or step_time <= 0:
            return 1
        cost = min(self.costs_seconds)
        return min(
            ceil(cost / (MAX_STEP_TIME_FRACTION * step_time)),
            CHEAP_STRIDE_STEPS if cost < CHEAP_COST_SECONDS else MAX_STRIDE_STEPS,
        )

    def measure(self, optimizer: Any) -> dict[str, Any]:
        """Name and value of our own norm; empty without gradients.

        Raises Refused where it could not be had by reading them alone.
        """
        torch = sys.modules["torch"]
        began = perf_counter()
        with torch.no_grad():
            parts, shares = self._local_gradients(parameters_with_gradient(optimizer), torch)
            if not parts:
                return self._norm_without_gradients(optimizer)
            alike: dict[GradientShare | None, list[Any]] = {}
            for norm, share in zip(_norms(parts, torch), shares, strict=True):
                alike.setdefault(share, []).append(norm)
            totals = [
                (torch.linalg.vector_norm(torch.stack(each)), share)
                for share, each in alike.items()
            ]
            found = combine_norms(totals)
            scale = getattr(optimizer, "grad_scale", None)
            if scale is not None:
                found = {name: total / scale.to(total.device) for name, total in found.items()}
        self.costs_seconds.append(perf_counter() - began)
        self.is_sharded = "grad_norm_local" in found
        return found

    def _norm_without_gradients(self, optimizer: Any) -> dict[str, Any]:
        """Of parameters that were flattened and split, a rank may hold none that has a gradient."""
        everything = [p for group in optimizer.param_groups for p in group["params"]]
        split = self.flattened_shares is not None and any(
            p in self.flattened_shares for p in everything
        )
        return {"grad_norm_local": 0.0} if split else {}

    def _local_gradients(
        self, parameters: Iterable[Any], torch: Any
    ) -> tuple[list[Any], list[GradientShare | None]]:
        parts: list[Any] = []
        shares: list[GradientShare | None] = []
        for parameter in parameters:
            grad = local_part(parameter.grad)
            if grad.is_complex():
                grad = torch.view_as_real(grad.resolve_conj())
            if grad.layout != torch.strided or (parts and grad.device != parts[0].device):
                raise RejectedValueError("type")
            parts.append(grad)
            shares.append(gradient_share(parameter, self.flattened_shares))
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
        raise RejectedValueError("type") from None


def parameters_with_gradient(optimizer: Any) -> Iterator[Any]:
    """Every parameter of an optimizer that has a gradient."""
    return (p for g in optimizer.param_groups for p in g["params"] if p.grad is not None)
