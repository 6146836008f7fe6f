"""Runs of reinforcement learning with what a policy shows beside its reward: entropy and length.

Healthy ones spend up to four fifths of their entropy, most of it early, and end with answers of
half to three times the length. All randomness is the seed's.
"""

from __future__ import annotations

import numpy as np
from support.synthetic_runs import Run, Series, _between, _noise, _reward, _schedule

SLOW = {"mild": 80, "moderate": 30, "severe": 10}
"""Points in which a length or a risen entropy doubles, or a length halves."""

DECAY = {"mild": 100, "moderate": 40, "severe": 10}
"""Points in which a collapsing entropy falls e-fold."""

LONGEST = {"mild": 4, "moderate": 6, "severe": 10}
"""How many times its length an exploding answer gets."""


def policy_run(seed: int, fault: str = "", severity: str = "moderate") -> Run:
    """A run of 120 to 2,000 points; `fault` is what a detector is called, and comes at 35 to 70 %.

    The reward knows nothing of the fault: it goes on as it would have.
    """
    rng = np.random.default_rng(seed)
    length = int(_between(rng, 120, 2000))
    onset = int(length * rng.uniform(0.35, 0.7))
    rate = _schedule(rng, length)
    way = np.cumsum(rate) / rate.sum()
    reward, _ = _reward(rng, way)
    since = np.maximum(np.arange(length) - onset, 0)
    entropy, words = _entropy(rng, way), _words(rng, way)
    if fault == "entropy_collapse":
        entropy = entropy * np.maximum(np.exp(-since / DECAY[severity]), 0.02)
    if fault == "entropy_explosion":
        entropy = entropy * np.minimum(2.0 ** (since / SLOW[severity]), 8)
    if fault == "length_explosion":
        words = words * np.minimum(2.0 ** (since / SLOW[severity]), LONGEST[severity])
    if fault == "length_collapse":
        words = np.maximum(words * np.maximum(2.0 ** (-since / SLOW[severity]), 0.03), 1)
    series = {"reward": reward, "entropy": entropy, "completion_length": words}
    return Run(series | {"learning_rate": rate * 1e-6}, onset + 1 if fault else None)


def _entropy(rng: np.random.Generator, way: Series) -> Series:
    first, left, haste = rng.uniform(0.15, 2.5), rng.uniform(0.2, 1.1), rng.uniform(3, 12)
    mean = first * (left + (1 - left) * np.exp(-way * haste))
    return np.asarray(mean * np.exp(_noise(rng, len(way)) * _between(rng, 0.05, 0.2)))


def _words(rng: np.random.Generator, way: Series) -> Series:
    mean = _between(rng, 30, 3000) * _between(rng, 0.5, 3) ** way
    return np.asarray(mean * np.exp(_noise(rng, len(way)) * _between(rng, 0.02, 0.4)))
