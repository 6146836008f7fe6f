"""Synthetic GRPO runs with all signals of a policy, for tests to add a fault to.

In a healthy run the reward rises, the entropy falls by two thirds and completions grow slightly.
Runs depend on the seed only.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

import numpy as np
from support.synthetic_runs import Series

from sentinel.model.record import Record
from sentinel.testing import steps

COUNT = 500
ONSET = 250
"""Points of a run, and the point at which the fault begins."""

TRL = {"framework": "trl", "algorithm": "grpo", "beta": 0.04, "learning_rate": 1e-6}
"""Settings without a fault."""


def grpo_run(seed: int) -> dict[str, Series]:
    """The series of a healthy run, by signal."""
    rng = np.random.default_rng([seed, 41])
    progress = np.arange(COUNT) / COUNT

    def noisy(level: Series | float, spread: float) -> Series:
        return np.asarray(level * np.exp(rng.normal(0, spread, COUNT)))

    return {
        "reward": 0.2 + 0.5 * np.minimum(progress / 0.6, 1) + rng.normal(0, 0.04, COUNT),
        "reward_std": noisy(0.3, 0.1),
        "frac_zero_std": rng.beta(2, 10, COUNT),
        "kl_ref": noisy(0.04 * (progress + 0.05), 0.25),
        "kl_old": noisy(5e-4, 0.3),
        "clip_fraction": noisy(0.02, 0.3),
        "entropy": noisy(0.3 + 0.6 * np.exp(-4 * progress), 0.05),
        "completion_length": noisy(200 * (1 + 0.3 * progress), 0.05),
        "truncated_fraction": rng.beta(1, 60, COUNT),
        "grad_norm": noisy(0.3, 0.3),
        "learning_rate": np.full(COUNT, 1e-6),
    }


def since(onset: int = ONSET) -> Series:
    """Number of points since the onset; 0 before it."""
    return np.maximum(np.arange(COUNT) - onset, 0.0)


def doubling(points: float, limit: float, onset: int = ONSET) -> Series:
    """A factor that doubles every `points` points from the onset, up to `limit`."""
    return np.asarray(np.minimum(2.0 ** (since(onset) / points), limit))


def records(run: Mapping[str, Series]) -> Iterator[Record]:
    """The run as records, one per point."""
    return steps(**{name: values.tolist() for name, values in run.items()})
