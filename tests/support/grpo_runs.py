"""Runs of GRPO that log all a trainer may tell of a policy, for a test to make ill.

A healthy one earns more and more, spends two thirds of its entropy and writes a little longer.
All randomness is the seed's.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from support.synthetic_runs import Series

from sentinel.model.record import Record
from sentinel.testing import steps

COUNT = 500
ONSET = 250
"""Points of a run, and those of them before it falls ill."""

TRL = {"framework": "trl", "algorithm": "grpo", "beta": 0.04, "learning_rate": 1e-6}
"""Settings with which nothing is wrong."""


def grpo_run(seed: int) -> dict[str, Series]:
    """The series of a healthy run, by signal."""
    rng = np.random.default_rng([seed, 41])
    way = np.arange(COUNT) / COUNT

    def about(level: Series | float, spread: float) -> Series:
        return np.asarray(level * np.exp(rng.normal(0, spread, COUNT)))

    return {
        "reward": 0.2 + 0.5 * np.minimum(way / 0.6, 1) + rng.normal(0, 0.04, COUNT),
        "reward_std": about(0.3, 0.1),
        "frac_zero_std": rng.beta(2, 10, COUNT),
        "kl_ref": about(0.04 * (way + 0.05), 0.25),
        "kl_old": about(5e-4, 0.3),
        "clip_fraction": about(0.02, 0.3),
        "entropy": about(0.3 + 0.6 * np.exp(-4 * way), 0.05),
        "completion_length": about(200 * (1 + 0.3 * way), 0.05),
        "truncated_fraction": rng.beta(1, 60, COUNT),
        "grad_norm": about(0.3, 0.3),
        "learning_rate": np.full(COUNT, 1e-6),
    }


def since(onset: int = ONSET) -> Series:
    """Points that each point comes after the onset; 0 before it."""
    return np.maximum(np.arange(COUNT) - onset, 0.0)


def doubling(points: float, most: float, onset: int = ONSET) -> Series:
    """A factor that doubles every so many points from the onset on, until it is `most`."""
    return np.asarray(np.minimum(2.0 ** (since(onset) / points), most))


def records(run: Mapping[str, Series]) -> Iterator[Record]:
    """The run as it is told, one record a point."""
    return steps(**{name: values.tolist() for name, values in run.items()})
