"""What is read of an optimizer when a training begins, or a rate was raised.

Its class, and rates of its groups that are far apart.
"""

from __future__ import annotations

from typing import Any

OPTIMIZERS_KEY = "optimizers"
"""Metadata: the classes of the optimizers."""

MIN_FACTOR = 50.0
"""Factor between two learning rates that few recipes have: a new head has 10 times, the second
matrices of adapters 16 times the rate of the others. Widths scaled by muP, and the opacities of
Gaussian splatting, have more."""


def describe_optimizer(optimizer: Any) -> dict[str, Any]:
    """Metadata of the optimizer: `optimizers`, its class, and `uneven_rates`."""
    return {OPTIMIZERS_KEY: type(optimizer).__name__, **uneven_rates(optimizer)}


def highest_rate(optimizer: Any) -> float:
    """The highest rate of a group, present or at the start; 0 if none is a plain number."""
    return max(map(_rate, optimizer.param_groups), default=0.0)


def uneven_rates(optimizer: Any) -> dict[str, float]:
    """The highest rate of a group, its number, its share of the weights, and the rate of most.

    Empty unless the first is `MIN_FACTOR` times the last. A scheduler may have lowered the rates of
    the first step: those that it began with count. Rates on a device are not read.
    """
    weights: dict[float, int] = {}
    rates = [_rate(group) for group in optimizer.param_groups]
    for rate, group in zip(rates, optimizer.param_groups, strict=True):
        weights[rate] = weights.get(rate, 0) + sum(each.numel() for each in group["params"])
    highest, main = max(weights, default=0.0), max(weights, key=weights.__getitem__, default=0.0)
    if not 0.0 < MIN_FACTOR * main <= highest:
        return {}
    return {
        "highest_group_learning_rate": float(highest),
        "highest_group_number": float(rates.index(highest)),
        "highest_group_weight_share": weights[highest] / max(1, sum(weights.values())),
        "main_group_learning_rate": float(main),
    }


def _rate(group: Any) -> float:
    """The rate of a group, or the one that its schedule began with if that is higher."""
    rates = (group.get("initial_lr"), group.get("lr"))
    return max((rate for rate in rates if type(rate) in (int, float)), default=0.0)
