"""Synthetic losses, as lists of values."""

from __future__ import annotations

from math import exp
from random import Random


def falling_loss(count: int, seed: int = 0) -> list[float]:
    """A loss that falls by a power law, with 5 % noise."""
    rng = Random(seed)
    return [3.0 * (1 + t / 30) ** -0.4 * exp(rng.gauss(0, 0.05)) for t in range(count)]


def flat_loss(count: int, level: float = 3.4, seed: int = 0) -> list[float]:
    """A loss that stays at `level`, with 5 % noise."""
    rng = Random(seed)
    return [level * exp(rng.gauss(0, 0.05)) for _ in range(count)]
