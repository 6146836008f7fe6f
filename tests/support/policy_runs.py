"""Synthetic reinforcement-learning runs with reward, entropy and completion length.

In healthy runs the entropy falls by up to four fifths, mostly early, and the length ends at half to
three times its start. Runs depend on the seed only.
"""

from __future__ import annotations

import numpy as np
from support.synthetic_runs import (
    Run,
    Series,
    learning_rate_schedule,
    log_uniform,
    reward_series,
    student_noise,
)

DOUBLING_POINTS = {"mild": 80, "moderate": 30, "severe": 10}
"""Points in which an exploding length or entropy doubles, or a collapsing length halves."""

ENTROPY_DECAY_POINTS = {"mild": 100, "moderate": 40, "severe": 10}
"""Points in which a collapsing entropy falls by the factor e."""

MAX_LENGTH_FACTOR = {"mild": 4, "moderate": 6, "severe": 10}
"""Factor by which an exploding length grows at most."""


def policy_run(seed: int, fault: str = "", severity: str = "moderate") -> Run:
    """A run of 120 to 2,000 points; `fault`, a detector name, begins at 35 to 70 %.

    The fault does not affect the reward.
    """
    rng = np.random.default_rng(seed)
    length = int(log_uniform(rng, 120, 2000))
    onset = int(length * rng.uniform(0.35, 0.7))
    rate = learning_rate_schedule(rng, length)
    progress = np.cumsum(rate) / rate.sum()
    reward, _ = reward_series(rng, progress)
    since = np.maximum(np.arange(length) - onset, 0)
    entropy, completion_length = entropy_series(rng, progress), length_series(rng, progress)
    if fault == "entropy_collapse":
        entropy = entropy * np.maximum(np.exp(-since / ENTROPY_DECAY_POINTS[severity]), 0.02)
    if fault == "entropy_explosion":
        entropy = entropy * np.minimum(2.0 ** (since / DOUBLING_POINTS[severity]), 8)
    if fault == "length_explosion":
        completion_length = completion_length * np.minimum(
            2.0 ** (since / DOUBLING_POINTS[severity]), MAX_LENGTH_FACTOR[severity]
        )
    if fault == "length_collapse":
        completion_length = np.maximum(
            completion_length * np.maximum(2.0 ** (-since / DOUBLING_POINTS[severity]), 0.03), 1
        )
    series = {"reward": reward, "entropy": entropy, "completion_length": completion_length}
    return Run(series | {"learning_rate": rate * 1e-6}, onset + 1 if fault else None)


def entropy_series(rng: np.random.Generator, progress: Series) -> Series:
    first, share_left, rate = rng.uniform(0.15, 2.5), rng.uniform(0.2, 1.1), rng.uniform(3, 12)
    mean = first * (share_left + (1 - share_left) * np.exp(-progress * rate))
    return np.asarray(
        mean * np.exp(student_noise(rng, len(progress)) * log_uniform(rng, 0.05, 0.2))
    )


def length_series(rng: np.random.Generator, progress: Series) -> Series:
    mean = log_uniform(rng, 30, 3000) * log_uniform(rng, 0.5, 3) ** progress
    return np.asarray(
        mean * np.exp(student_noise(rng, len(progress)) * log_uniform(rng, 0.02, 0.4))
    )
