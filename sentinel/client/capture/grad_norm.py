"""The gradient norm before clipping: from the trainer's own clipping if it clips, else measured.

A measurement takes one pass over the gradients. It runs at a stride that keeps its time below
`MAX_STEP_TIME_FRACTION` of a step, but at least every `CHEAP_STRIDE_STEPS` steps while it takes
less than `CHEAP_COST_SECONDS`. Gradients that a GradScaler has scaled, for fused optimizers, are
divided by the scale. A rank that holds only a part of each gradient reports the norm of its part as
`grad_norm_local`, since combining the parts would need a collective.
"""

from __future__ import annotations

import sys
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from importlib import import_module
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
CHEAP_STRIDE_STEPS = 10
CHEAP_COST_SECONDS = 1e-3
MAX_STRIDE_STEPS = 1000
SHARDED_STRIDES = (1, 2, 10, 20, 100, 200, MAX_STRIDE_STEPS)
"""Strides for sharded gradients. Each is a multiple of the one before, so that ranks with different
strides still measure at common steps: norms of parts can only be combined within one step."""


@dataclass
class GradNorm:
    """The norm of one optimizer's gradients, step by step."""

    clips: deque[tuple[Any, Any]] = field(default_factory=lambda: deque(maxlen=16))
    """Weak reference to the first gradient, and the norm, of each clipping since the last step."""
    costs_seconds: deque[float] = field(default_factory=lambda: deque(maxlen=3))
    """Times of the last measurements; the smallest counts, since the first ones warm up."""
    steps_since_measurement: int = 0
    """Steps since the last measurement was due."""
    due_checks: int = 0
    """Number of calls of `is_due`."""
    is_sharded: bool = False
    """Whether the last measurement covered only this rank's part."""
    flattened_shares: Any = None
    """Shares of flattened parameters, where an integration provides them."""

    def add_clip(self, gradients: list[Any], norm: Any) -> None:
        """Note that the trainer clips these gradients, and their L2 norm."""
        # An import statement at each step would cost more than the reference.
        weak = sys.modules.get("torch.utils.weak") or import_module("torch.utils.weak")
        if gradients and not any(first() is gradients[0] for first, _ in self.clips):
            # A weak reference: the gradient may be large, and a step may never follow.
            self.clips.append((weak.TensorWeakRef(gradients[0]), norm))

    def pop_clipped_norm(self, optimizer: Any) -> dict[str, Any]:
        """Name and norm of the optimizer's clipped gradients; empty if none were clipped.

        Raises RejectedValueError if the rank's share of the norm is unknown.
        """
        if not self.clips:
            return {}
        clips = {id(grad): norm for first, norm in self.clips if (grad := first()) is not None}
        self.clips.clear()
        norms = []
        for parameter in parameters_with_gradient(optimizer):
            norm = clips.pop(id(parameter.grad), None)
            if norm is not None:
                norms.append((local_part(norm), norm_share(norm)))
                if not clips:
                    break
        return combine_norms(norms)

    def is_due(self, step_time: float) -> bool:
        """Whether to measure the norm at this step; `step_time` is in seconds."""
        self.due_checks += 1
        self.steps_since_measurement += 1
        stride = self._stride(step_time)
        if self.is_sharded:
            common_stride = next(each for each in SHARDED_STRIDES if each >= stride)
            return self.due_checks % common_stride == 0
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
        """Name and value of the measured norm; empty without gradients.

        Raises RejectedValueError if reading the gradients is not enough.
        """
        torch = sys.modules["torch"]
        began = perf_counter()
        with torch.no_grad():
            parts, shares = self._local_gradients(parameters_with_gradient(optimizer), torch)
            if not parts:
                return self._norm_without_gradients(optimizer)
            by_share: dict[GradientShare | None, list[Any]] = {}
            for norm, share in zip(gradient_norms(parts, torch), shares, strict=True):
                by_share.setdefault(share, []).append(norm)
            totals = [
                (torch.linalg.vector_norm(torch.stack(each)), share)
                for share, each in by_share.items()
            ]
            norms = combine_norms(totals)
            scale = getattr(optimizer, "grad_scale", None)
            if scale is not None:
                norms = {name: total / scale.to(total.device) for name, total in norms.items()}
        self.costs_seconds.append(perf_counter() - began)
        self.is_sharded = "grad_norm_local" in norms
        return norms

    def _norm_without_gradients(self, optimizer: Any) -> dict[str, Any]:
        """A rank may hold no gradient of flattened and split parameters: its norm is then 0."""
        parameters = [p for group in optimizer.param_groups for p in group["params"]]
        is_split = self.flattened_shares is not None and any(
            p in self.flattened_shares for p in parameters
        )
        return {"grad_norm_local": 0.0} if is_split else {}

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


def gradient_norms(parts: list[Any], torch: Any) -> list[Any]:
    """The norms as clip_grad_norm_ computes them, but not rounded to half precision."""
    dtype = torch.float64 if any(p.dtype == torch.float64 for p in parts) else torch.float32
    try:
        return list(torch._foreach_norm(parts, 2, dtype=dtype))  # noqa: SLF001
    except TypeError:
        # PyTorch before 2.4.
        return [norm.to(dtype) for norm in torch._foreach_norm(parts)]  # noqa: SLF001
    except RuntimeError:
        # A dtype without a norm, or no memory left: the loss must not be lost as well.
        raise RejectedValueError("type") from None


def parameters_with_gradient(optimizer: Any) -> Iterator[Any]:
    """Every parameter of an optimizer that has a gradient."""
    return (p for g in optimizer.param_groups for p in g["params"] if p.grad is not None)
