"""Curvature of the loss: leading Hessian eigenvalues, and how far they are from instability.

Gradient descent with learning rate lr is stable on a quadratic whose largest eigenvalue is below
2 / lr. Training often rises to that edge of stability and stays there (Cohen et al. 2021,
"Gradient Descent on Neural Networks Typically Occurs at the Edge of Stability"). For Adam the
Hessian counts in the scale of the second moments (Cohen et al. 2022, "Adaptive Gradient Methods at
the Edge of Stability").
"""

from __future__ import annotations

import time
from contextlib import nullcontext
from dataclasses import dataclass, field
from math import inf
from typing import TYPE_CHECKING, Any

import numpy as np

from sentinel.insight.measure.evaluation import Evaluator, LossFunction, Mode
from sentinel.insight.measure.hessian import leading_eigenpairs
from sentinel.insight.measure.measurement import measuring
from sentinel.insight.measure.parameters import Selection
from sentinel.insight.measure.weight_space import Vector
from sentinel.insight.result import Result

if TYPE_CHECKING:
    from torch import nn

_ADAM = frozenset({"Adam", "AdamW", "FusedAdam", "DeepSpeedCPUAdam"})
"""Classes whose state has the second moments as they are, not in 8 bits."""


@dataclass(frozen=True, slots=True)
class Sharpness(Result):
    """The largest eigenvalues of the Hessian of the loss, the largest first."""

    eigenvalues: list[float]
    learning_rate: float | None = None
    limit: float | None = None
    """Eigenvalue above which the optimizer oscillates on a quadratic; None if it is not known."""
    ratio: float | None = None
    """Largest eigenvalue / limit: 1 is the edge of stability."""
    preconditioned: bool = False
    """Whether the eigenvalues are those of the Hessian in the scale of an adaptive optimizer."""
    trace: float | None = None
    evaluations: int = 0
    """Hessian-vector products, each about as costly as two gradients."""
    seconds: float = 0.0
    note: list[str] = field(default_factory=list)
    step: int | None = None
    name: str = ""
    kind: str = "sharpness"


def sharpness(  # noqa: PLR0913 - keyword arguments with defaults
    model: nn.Module,
    loss_fn: LossFunction,
    batch: Any,
    *,
    optimizer: Any = None,
    parameters: Selection = None,
    k: int = 1,
    tolerance: float = 1e-3,
    seed: int = 0,
    trace_samples: int = 0,
    mode: Mode = "eval",
    process_group: Any = None,
    step: int | None = None,
    timeout: float | None = None,
    max_seconds: float | None = None,
) -> Sharpness:
    """The `k` largest eigenvalues of the Hessian of the loss at the current weights.

    With an optimizer the result has its limit of stability: 2 / lr for SGD, (2 + 2 momentum) / lr
    with momentum, (2 + 2 momentum) / ((1 + 2 momentum) lr) with Nesterov's, and for Adam and AdamW
    (2 + 2 beta1) / ((1 - beta1) lr) for the preconditioned Hessian, whose eigenvalues are returned.
    Weight decay is left out of the Hessian. With Adam, batch norm uses the statistics of the batch
    in either mode, unless the training keeps it in eval mode or it is a SyncBatchNorm.

    `trace_samples` > 0 adds an estimate of the trace of the Hessian from so many random vectors
    (Hutchinson 1989). The other arguments are those of `loss_surface`. The model is given back
    bit-exactly. Raises what `loss_surface` raises, and UndefinedError, a SurfaceError, if the
    Hessian is not finite or its eigenvalues do not converge, and
    OutOfTimeError after `max_seconds`.
    """
    if k < 1:
        raise ValueError(f"`k` is the number of eigenvalues, at least 1, not {k!r}.")
    with measuring(model, parameters, process_group, timeout) as (space, exchange):
        exchange.require_equal(
            k=k, tolerance=tolerance, seed=seed, trace_samples=trace_samples, mode=mode
        )
        evaluator = Evaluator(
            model,
            loss_fn,
            batch,
            space,
            exchange=exchange,
            mode=mode,
            seed=seed,
            max_seconds=max_seconds,
        )
        return measure_sharpness(
            evaluator,
            optimizer,
            k=k,
            tolerance=tolerance,
            seed=seed,
            trace_samples=trace_samples,
            step=step,
        )


def measure_sharpness(  # noqa: PLR0913 - keyword arguments with defaults
    evaluator: Evaluator,
    optimizer: Any = None,
    *,
    k: int = 1,
    tolerance: float = 1e-3,
    seed: int = 0,
    trace_samples: int = 0,
    step: int | None = None,
) -> Sharpness:
    """`sharpness` with an evaluator that is there."""
    started = time.monotonic()
    space = evaluator.space
    products = evaluator.hessian_products
    stability = _stability(optimizer, evaluator)
    scale = None if stability.scale is None else space.to_array(stability.scale)
    notes = list(stability.notes)
    # The second moments are those of gradients in train mode. In eval mode a bias before batch norm
    # has curvature, and its gradient in training is rounding noise.
    with evaluator.batch_statistics() if _is_adam(optimizer) else nullcontext(False) as is_switched:
        pairs = leading_eigenpairs(evaluator, k, tolerance=tolerance, seed=seed, scale=scale)
        trace = _trace(evaluator, trace_samples, seed) if trace_samples else None
    if is_switched:
        notes.append("Batch norm uses the statistics of the batch, as in the steps of Adam.")
    values = [value for value, _ in pairs]
    ratio = values[0] / stability.limit if stability.limit else None
    return Sharpness(
        eigenvalues=values,
        learning_rate=stability.learning_rate,
        limit=stability.limit,
        ratio=ratio,
        preconditioned=stability.is_preconditioned,
        trace=trace,
        evaluations=evaluator.hessian_products - products,
        seconds=time.monotonic() - started,
        note=[*dict.fromkeys([*evaluator.notes, *notes])],
        step=step,
    )


@dataclass(frozen=True, slots=True)
class _Stability:
    """The limit of an optimizer, and the scale s in which the Hessian is diag(s) H diag(s)."""

    learning_rate: float | None = None
    limit: float | None = None
    scale: Vector | None = None
    is_preconditioned: bool = False
    notes: tuple[str, ...] = ()


def _stability(optimizer: Any, evaluator: Evaluator) -> _Stability:
    if optimizer is None:
        return _Stability()
    is_adam = _is_adam(optimizer)
    optimizer = getattr(optimizer, "optimizer", optimizer)
    space = evaluator.space
    groups = {
        id(parameter): group for group in optimizer.param_groups for parameter in group["params"]
    }
    own = [groups.get(id(parameter)) for parameter in space.parameters]
    rates = [float(group["lr"]) for group in own if group is not None]
    fastest = max(rates, default=0.0)
    if not fastest:
        note = "There is no limit of stability: the learning rate of these weights is 0."
        return _Stability(learning_rate=fastest if rates else None, notes=(note,))
    leading = next(group for group in own if group is not None and float(group["lr"]) == fastest)
    if is_adam:
        return _adam(optimizer, evaluator, own, fastest, leading)
    if "SGD" in {each.__name__ for each in type(optimizer).__mro__}:
        momentum = float(leading.get("momentum", 0.0))
        # Dampening scales every gradient but the first.
        damped = 1 - float(leading.get("dampening", 0.0)) if momentum else 1.0
        limit = (2 + 2 * momentum) / (fastest * damped) if damped > 0 else inf
        if leading.get("nesterov"):
            limit /= 1 + 2 * momentum
        shares = [0.0 if group is None else float(group["lr"]) / fastest for group in own]
        if all(share == 1.0 for share in shares):
            return _Stability(fastest, limit)
        pairs = zip(space.center, shares, strict=True)
        scale = [each * 0 + share**0.5 for each, share in pairs]
        return _Stability(fastest, limit, scale, is_preconditioned=True)
    note = f"There is no known limit of stability for the optimizer {type(optimizer).__name__}."
    return _Stability(fastest, notes=(note,))


def _is_adam(optimizer: Any) -> bool:
    kinds = {each.__name__ for each in type(getattr(optimizer, "optimizer", optimizer)).__mro__}
    return not kinds.isdisjoint(_ADAM)


def _adam(
    optimizer: Any, evaluator: Evaluator, own: list[Any], fastest: float, leading: Any
) -> _Stability:
    """Scale and limit of Adam; P = (1 - beta1^t) (sqrt(v / (1 - beta2^t)) + eps)."""
    space = evaluator.space
    scale, missing = [], 0
    for parameter, center, group in zip(space.parameters, space.center, own, strict=True):
        state = optimizer.state.get(parameter, {}) if group is not None else {}
        moments = state.get("max_exp_avg_sq", state.get("exp_avg_sq"))
        if group is None or moments is None or moments.shape != parameter.shape:
            missing += group is not None
            scale.append(center * 0)
            continue
        count = float(state.get("step", group.get("step", 0)))
        first, second = (float(each) for each in group["betas"])
        corrected = moments.detach().to(center.dtype) / (1 - second**count)
        preconditioner = (1 - first**count) * (corrected.sqrt() + float(group["eps"]))
        scale.append((float(group["lr"]) / fastest / preconditioner).sqrt())
    if missing:
        note = (
            "There is no limit of stability: the optimizer has no second moments of "
            f"{missing} of the weights yet. Measure after its first step."
        )
        return _Stability(fastest, notes=(note,))
    beta = float(leading["betas"][0])
    limit = (2 + 2 * beta) / ((1 - beta) * fastest)
    return _Stability(fastest, limit, scale, is_preconditioned=True)


def _trace(evaluator: Evaluator, samples: int, seed: int) -> float:
    space, total = evaluator.space, 0.0
    for index in range(samples):
        signs = np.random.default_rng([seed, index]).integers(0, 2, space.size) * 2.0 - 1.0
        vector = space.from_array(signs)
        total += space.dot(vector, evaluator.hessian_product(vector))
    evaluator.release()
    return total / samples
